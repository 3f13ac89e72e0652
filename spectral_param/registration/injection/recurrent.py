"""``nn.RNN``, ``nn.LSTM`` and ``nn.GRU`` with registered weights: each is evaluated once a forward, and none is kept.

The plain classes keep a list of their weights, ``_flat_weights``, for the kernel to read. Here that list is filled
at the start of a forward, in the thread that runs it, and is gone at its end, whatever happens between.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor


class _Running(threading.local):
    """The lists of the forwards that are running in this thread, by the id of their module."""

    def __init__(self) -> None:
        self.lists: dict[int, list[Tensor | None]] = {}


_running = _Running()


def no_weight() -> None:
    """A reference to a weight that is gone: the plain class, should it come back, then reads its weights anew."""


def recurrent_members(base: Any) -> dict[str, Any]:
    """What the class of a registered recurrent module has: lists that live for a forward."""

    def names(self: Any) -> list[str]:
        return self._flat_weights_names

    def forget(self: Any) -> None:
        self._weights_for_the_compiler = None
        vars(self).pop("_flat_weights", None)  # those of the plain class
        vars(self).pop("_flat_weight_refs", None)

    def flat_weights(self: Any) -> list[Tensor | None]:
        if torch.compiler.is_compiling():  # which follows attributes, but no thread
            return self._weights_for_the_compiler
        return _running.lists.get(id(self)) or [None] * len(names(self))

    def read(self: Any) -> None:
        weights = [getattr(self, name) for name in names(self)]
        if torch.compiler.is_compiling():
            self._weights_for_the_compiler = weights
        elif id(self) in _running.lists:
            _running.lists[id(self)] = weights

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            try:
                return base.forward(self, *args, **kwargs)
            finally:
                self._weights_for_the_compiler = None
        before = _running.lists.get(id(self))
        _running.lists[id(self)] = []
        try:
            return base.forward(self, *args, **kwargs)
        finally:
            if before is None:
                del _running.lists[id(self)]
            else:
                _running.lists[id(self)] = before

    return {
        "_flat_weights": property(flat_weights, lambda self, weights: None),
        "_flat_weight_refs": property(
            lambda self: [no_weight] * len(names(self)), lambda self, references: forget(self)
        ),
        "_init_flat_weights": forget,
        "_update_flat_weights": read,
        "forward": forward,
        "flatten_parameters": lambda self: None,
    }
