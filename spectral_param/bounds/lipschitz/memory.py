"""What a forward may remember from one call to the next on the module itself: tracing it once must not change that."""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import Any

import torch
from torch import Tensor, fx, nn


class Memory:
    """The containers and tensors that a module holds, as they are now.

    Example:
        >>> import torch
        >>> from spectral_param.bounds.lipschitz.memory import Memory
        >>> module = torch.nn.Module()
        >>> module.seen, module.count = [], torch.zeros(1)
        >>> memory = Memory(module)
        >>> module.seen.append(1)
        >>> _ = module.count.add_(1)
        >>> sorted(memory.put_back()), module.seen, module.count
        (['count', 'seen'], [], tensor([0.]))
    """

    def __init__(self, module: nn.Module) -> None:
        held = vars(module)
        containers = {name: value for name, value in held.items() if isinstance(value, (list, dict, set, deque))}
        tensors = {name: value for name, value in (held | held["_buffers"]).items() if isinstance(value, Tensor)}
        self._containers: list[tuple[str, Any, Any]] = [
            (name, value, copy(value)) for name, value in containers.items()
        ]
        self._tensors = [
            (name, t, t._version, t.detach().clone()) for name, t in tensors.items() if not t.is_inference()
        ]

    def put_back(self) -> set[str]:
        """Gives all of them what they held, and says which had something else, by the name that they are read by."""
        changed = set()
        for name, tensor, version, numbers in self._tensors:
            if tensor._version != version:
                changed.add(name)
                with torch.no_grad():
                    tensor.copy_(numbers)
        for name, value, before in self._containers:
            if _contents(value) == _contents(before):
                continue
            if name in ("_buffers", "_parameters", "_modules"):
                changed |= {key for key in value.keys() | before.keys() if value.get(key) is not before.get(key)}
            else:
                changed.add(name)
            value.clear()
            value.update(before) if isinstance(value, (dict, set)) else value.extend(before)
        return changed


def works_in_place(node: fx.Node) -> bool:
    """Whether an operation writes to what it is given: by its name, which ends in ``_``, or since it is told to."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _contents(container: Any) -> Any:
    if isinstance(container, set):
        return set(map(id, container))
    return [*map(id, container), *map(id, container.values() if isinstance(container, dict) else ())]
