"""Reading and writing a registered weight as the attribute that it was.

- Within a forward of its module a weight is evaluated once, however often it is read.
- A weight read outside of one is watched until the next read: it is computed, so that changing it in place changes
  nothing else, and the user is told.
- An assignment goes into the factors that are there, so that optimizers, hooks and wrappers keep their hold on them.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.householder import traced_or_transformed
from spectral_param.shards import write_

Weights = dict[tuple[str, bool], Tensor]


class _Running(threading.local):
    """Weights read so far by the forwards that are running in this thread, by the id of their module."""

    def __init__(self) -> None:
        self.weights: dict[int, Weights] = {}


class _Watched(NamedTuple):
    weight: Tensor
    version: int | None
    total: float | None

    def is_changed(self) -> bool:
        return (self.version, self.total) != (_version(self.weight), _total(self.weight))


_running = _Running()
_watched: WeakKeyDictionary[nn.Module, _Watched] = WeakKeyDictionary()


def one_evaluation(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a forward in which every registered weight of its module is evaluated at most once for each grad mode."""

    @functools.wraps(forward)
    def wrapped(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        if _watched:
            for name, held in self.parametrizations.items():  # type: ignore[union-attr, operator]
                _tell_of_change(held, name)
        before = _running.weights.get(id(self))
        _running.weights[id(self)] = {}
        try:
            return forward(self, *args, **kwargs)
        finally:
            if before is None:
                del _running.weights[id(self)]
            else:
                _running.weights[id(self)] = before

    return wrapped


def weight_property(tensor_name: str, evaluate: Callable[[Any], Tensor]) -> property:
    """The property of a registered weight; ``evaluate`` is torch's own getter."""

    def read(self: Any) -> Tensor:
        if traced_or_transformed():
            return evaluate(self)
        weights = _running.weights.get(id(self))
        if weights is None:
            held = self.parametrizations[tensor_name]
            _tell_of_change(held, tensor_name)
            weight = evaluate(self)
            _watch(held, weight)
            return weight
        key = (tensor_name, torch.is_grad_enabled())
        if key not in weights:
            weights[key] = evaluate(self)
        return weights[key]

    def write(self: Any, value: Tensor) -> None:
        held = self.parametrizations[tensor_name]
        if not isinstance(value, Tensor):
            raise TypeError(f"{tensor_name}: expected a tensor, got {type(value).__name__}.")
        with torch.no_grad():
            for later in reversed(list(held)[1:]):
                value = later.right_inverse(value)
            fill(held, held[0].right_inverse(value))
        _watched.pop(held, None)
        _running.weights.get(id(self), {}).clear()
        if isinstance(self, nn.RNNBase):
            self._init_flat_weights()

    return property(read, write)


def fill(held: parametrize.ParametrizationList, factors: Sequence[Tensor]) -> None:
    """Writes factors into those that a list holds, in place."""
    with torch.no_grad():
        for i, factor in enumerate(factors):
            write_(getattr(held, f"original{i}"), factor)


def _watch(held: nn.Module, weight: Tensor) -> None:
    if type(weight) is Tensor:
        weight = weight.detach()
        _watched[held] = _Watched(weight, _version(weight), _total(weight))


def _tell_of_change(held: nn.Module, tensor_name: str) -> None:
    watched = _watched.pop(held, None)
    if watched is not None and watched.is_changed():
        warnings.warn(
            f"{tensor_name}: was changed in place after it was read, which has no effect on a weight in SVD form; "
            f"assign to it instead: module.{tensor_name} = value.",
            stacklevel=3,
        )


def _version(weight: Tensor) -> int | None:
    return None if weight.is_inference() else weight._version


def _total(weight: Tensor) -> float | None:
    """A sum that shows a change made through ``.data``; not where it would have to wait for a device."""
    if weight.device.type != "cpu":
        return None
    total = weight.sum(dtype=torch.float64).item()
    return total if total == total else 0.0
