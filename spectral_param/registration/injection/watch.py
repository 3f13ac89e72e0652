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

from spectral_param.registration.injection.whereabouts import name_of
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.private import address, memory_users, tracing_state
from spectral_param.torch_state.snapshot import lazy_copy
from spectral_param.torch_state.users_line import warn


class _HandedOut:
    """A weight, and how it looked when it was handed out."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.numbers = lazy_copy(weight) if weight.device.type == "cpu" else None
        self.storage = weight.detach()  # where its numbers were, should ``.data`` be set
        self.users = memory_users(self.storage)  # by its graph and by us
        self.requires_grad, self.version = weight.requires_grad, self._version()

    def _version(self) -> int | None:
        return None if self.weight.is_inference() else self.weight._version

    def _was_written_to(self) -> bool:
        if self.version != self._version() or self.weight.shape != self.storage.shape:
            return True
        if self.numbers is None:  # where writes through ``.data`` are not seen, but for another tensor in the place
            return address(self.weight) != address(self.storage)
        at = address(self.numbers)
        moved = [tensor for tensor in (self.weight, self.storage) if address(tensor) != at]  # also by NumPy, to read
        return any(checksum(tensor) != checksum(self.numbers) for tensor in moved)

    @property
    def change(self) -> str:
        """What was done to it, and what to do in place of that; nothing for nothing."""
        if self.weight.requires_grad != self.requires_grad:
            return "requires_grad was set on what is read of it, {no_effect}; set it on its factors: {factors}."
        if self._was_written_to():
            return "was changed in place after it was read, {no_effect}; assign to it instead: {weight} = value."
        return ""

    @property
    def is_held(self) -> bool:
        """Whether somebody else has the tensor or its storage, and may change it yet."""
        return sys.getrefcount(self.weight) > 2 or memory_users(self.storage) > self.users


handed_out: weakref.WeakKeyDictionary[nn.Module, list[_HandedOut]] = weakref.WeakKeyDictionary()
"""By parametrization list. Written here alone."""


def hand_out(parametrization_list: nn.Module, weight: Tensor) -> None:
    """Watches a weight until it is let go."""
    if type(weight) is Tensor and not weight.is_meta:
        watched = handed_out.setdefault(parametrization_list, [])
        if not any(one.weight is weight for one in watched):
            watched.append(_HandedOut(weight))


def forget(parametrization_list: nn.Module) -> None:
    """Watches no weight of before any more, as after an assignment."""
    handed_out.pop(parametrization_list, None)


def tell_of_writes(module: Any) -> None:
    """Warns, once for each, of weights of a module that were changed after they were handed out."""
    if handed_out and tracing_state() is None:  # which would record the questions, of weights that it read itself
        for held in module._modules["parametrizations"]._modules.values():
            tell(held)


def is_of_another(weight: Tensor, parametrization_list: nn.Module) -> bool:
    """Whether a tensor is a weight that another registered module has handed out."""
    others = [reference() for reference in handed_out.keyrefs()]  # a copy at once: other threads may hand out
    return any(
        one.weight is weight
        for other in others
        if other is not None and other is not parametrization_list
        for one in handed_out.get(other, ())
    )


def tell(parametrization_list: nn.Module) -> None:
    """Warns if a weight was changed after it was handed out; lets go of those that nobody holds."""
    watched = handed_out.pop(parametrization_list, [])
    change = next(filter(None, [one.change for one in watched]), "")
    if change:
        name = name_of(parametrization_list)
        owner, _, tensor_name = name.rpartition(".")
        says = change.format(
            no_effect="which has no effect on a weight in SVD form",
            weight=name,
            factors=f"{owner}.parametrizations.{tensor_name}.requires_grad_()",
        )
        warn(f"{name}: {says}")
    elif still_held := [one for one in watched if one.is_held]:
        handed_out[parametrization_list] = still_held


def _before_a_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for reference in handed_out.keyrefs():  # a copy at once: other threads may hand out
        held = reference()
        if held is not None:
            tell(held)


register_optimizer_step_pre_hook(_before_a_step)
