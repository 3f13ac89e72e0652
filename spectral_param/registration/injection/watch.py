"""Weights that were handed out: computed they are, so that writing to them changes nothing else, and the user is told.

Asked wherever the weight counts: at its module's next forward or read, in ``state_dict``, before a copy, a pickle, a
removal, and before an optimizer's step.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.users_line import warn


class _HandedOut:
    """A weight, and how it looked when it was handed out."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.storage = weight.detach()  # where its numbers were, should ``.data`` be set
        self.looks = self._looks()

    def _looks(self) -> tuple[object, ...]:
        version = None if self.weight.is_inference() else self.weight._version
        requires_grad = self.weight.requires_grad
        return version, self.weight.data_ptr(), requires_grad, checksum(self.weight), checksum(self.storage)

    @property
    def is_changed(self) -> bool:
        return self.looks != self._looks()

    @property
    def is_held(self) -> bool:
        """Whether somebody else has the tensor or its storage, and may change it yet."""
        count = torch._C._storage_Use_Count(self.weight.untyped_storage()._cdata)
        return count > _ALONE or sys.getrefcount(self.weight) > 2


def _storage_uses_when_alone() -> int:
    """How often torch counts a storage that only a :class:`_HandedOut` has; versions of torch differ."""
    alone = _HandedOut(torch.zeros(1))
    return torch._C._storage_Use_Count(alone.weight.untyped_storage()._cdata)


_ALONE = _storage_uses_when_alone()
handed_out: weakref.WeakKeyDictionary[nn.Module, list[_HandedOut]] = weakref.WeakKeyDictionary()
"""By parametrization list. Written here alone."""


def hand_out(parametrization_list: nn.Module, weight: Tensor) -> None:
    """Watches a weight until it is let go."""
    if type(weight) is Tensor and not weight.is_meta:
        handed_out.setdefault(parametrization_list, []).append(_HandedOut(weight))


def forget(parametrization_list: nn.Module) -> None:
    """Watches no weight of before any more, as after an assignment."""
    handed_out.pop(parametrization_list, None)


def tell_of_writes(module: Any) -> None:
    """Warns, once for each, of weights of a module that were changed after they were handed out."""
    if handed_out:
        for name, held in module._modules["parametrizations"]._modules.items():
            _tell(held, name)


def is_of_another(weight: Tensor, parametrization_list: nn.Module) -> bool:
    """Whether a tensor is a weight that another registered module has handed out."""
    others = [reference() for reference in handed_out.keyrefs()]  # a copy at once: other threads may hand out
    return any(
        one.weight is weight
        for other in others
        if other is not None and other is not parametrization_list
        for one in handed_out.get(other, ())
    )


def _tell(held: nn.Module, tensor_name: str) -> None:
    watched = handed_out.pop(held, [])
    if any(one.is_changed for one in watched):
        first = held._modules["0"]
        name = first.name if isinstance(first, SVDParametrization) else tensor_name
        warn(
            f"{name}: was changed in place after it was read, which has no effect on a weight in SVD form; "
            f"assign to it instead: module.{tensor_name} = value."
        )
    elif still_held := [one for one in watched if one.is_held]:
        handed_out[held] = still_held


def _before_a_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for reference in handed_out.keyrefs():  # a copy at once: other threads may hand out
        held = reference()
        if held is None:
            continue
        first = held._modules["0"]
        _tell(held, first.name.rpartition(".")[2] if isinstance(first, SVDParametrization) else "weight")


register_optimizer_step_pre_hook(_before_a_step)
