"""Reading and writing a registered weight as the attribute that it was.

- Attention reads its weights several times a forward; they are evaluated once.
- A weight read outside of a forward of its module is watched until it is let go: it is computed, so that changing it
  in place changes nothing else, and the user is told.
- An assignment goes into the factors that are there, so that optimizers, hooks and wrappers keep their hold on them.
"""

from __future__ import annotations

import functools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.modes import traced_or_transformed
from spectral_param.torch_state.shards import write_

Weights = dict[tuple[str, bool, bool], Tensor]


class _Running(threading.local):
    """What the forwards that run in this thread have read, by the id of their module; ``None``: nothing is kept."""

    def __init__(self) -> None:
        self.weights: dict[int, Weights | None] = {}


class _Watched:
    """A weight that was handed out, and how it looked then."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach() if weight.requires_grad else weight  # without the graph
        self.looks = self._looks()

    def _looks(self) -> tuple[object, ...]:
        version = None if self.weight.is_inference() else self.weight._version
        return version, self.weight.data_ptr(), checksum(self.weight)

    @property
    def is_changed(self) -> bool:
        return self.looks != self._looks()

    @property
    def is_held(self) -> bool:
        """Whether somebody else has the tensor or its storage, and may change it yet."""
        storage = torch._C._storage_Use_Count(self.weight.untyped_storage()._cdata)
        return storage > 2 or sys.getrefcount(self.weight) > 2  # ours, and that of the question


_running = _Running()
_watched: weakref.WeakKeyDictionary[nn.Module, list[_Watched]] = weakref.WeakKeyDictionary()


def in_forward(forward: Callable[..., Any], *, keep: bool) -> Callable[..., Any]:
    """Tells reads within a forward from those outside; with ``keep`` a weight is evaluated once in it."""

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        if _watched:
            for name, held in self.parametrizations.items():
                _tell_of_change(held, name)
        outer = _running.weights
        nothing: Weights | None = {} if keep else None
        _running.weights = {**outer, id(self): nothing}
        try:
            return forward(self, *args, **kwargs)
        finally:
            _running.weights = outer

    return wrapped


def weight_property(tensor_name: str, evaluate: Callable[[Any], Tensor]) -> property:
    """The property of a registered weight; ``evaluate`` is torch's own getter."""

    def read(self: Any) -> Tensor:
        if traced_or_transformed():
            return evaluate(self)
        if id(self) not in _running.weights:
            held = self.parametrizations[tensor_name]
            _tell_of_change(held, tensor_name)
            weight = evaluate(self)
            if type(weight) is Tensor:
                _watched.setdefault(held, []).append(_Watched(weight))
            return weight
        weights = _running.weights[id(self)]
        if weights is None:
            return evaluate(self)
        key = (tensor_name, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if key not in weights:
            weights[key] = evaluate(self)
        return weights[key]

    def write(self: Any, value: Tensor) -> None:
        held = self.parametrizations[tensor_name]
        if not isinstance(value, Tensor):
            raise TypeError(f"{tensor_name}: expected a tensor, got {type(value).__name__}.")
        fill(held, factors_of(held, value))
        _watched.pop(held, None)
        (_running.weights.get(id(self)) or {}).clear()

    return property(read, write)


def factors_of(held: Any, weight: Tensor) -> Sequence[Tensor]:
    """The factors for a weight, through the inverses of what is parametrized on top of ours."""
    with torch.no_grad():
        for later in reversed(list(held)[1:]):
            if not hasattr(later, "right_inverse"):
                raise ValueError(
                    f"weight: {type(later).__name__}, registered on top, has no right_inverse to assign by."
                )
            weight = later.right_inverse(weight)
        return held[0].right_inverse(weight)


def fill(held: parametrize.ParametrizationList, factors: Sequence[Tensor]) -> None:
    """Writes factors into those that a list holds, in place."""
    with torch.no_grad():
        for i, factor in enumerate(factors):
            write_(getattr(held, f"original{i}"), factor)


def _tell_of_change(held: nn.Module, tensor_name: str) -> None:
    watched = _watched.pop(held, [])
    if any(one.is_changed for one in watched):
        warnings.warn(
            f"{tensor_name}: was changed in place after it was read, which has no effect on a weight in SVD form; "
            f"assign to it instead: module.{tensor_name} = value.",
            stacklevel=3,
        )
    elif still_held := [one for one in watched if one.is_held]:
        _watched[held] = still_held
