"""What took the place of a weight that an optimizer, built before it was registered, may still hold."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.injection.whereabouts import name_of
from spectral_param.torch_state.users_line import warn

_successors: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""From a weight that was registered, a weak reference to what took its place; from what was folded since, its name."""

_looked_at: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
"""How many registrations there had been when an optimizer was last looked at."""

_count = 0


def succeed(weight: Tensor, parametrization: SVDParametrization) -> None:
    """Takes note of what took the place of a weight."""
    global _count
    _count += 1
    _successors[weight] = weakref.ref(parametrization)


def successor(weight: Tensor) -> SVDParametrization | None:
    """What took the place of a parameter that was registered, if that is what this tensor is."""
    reference = _successors.get(weight)
    return None if reference is None or isinstance(reference, str) else reference()


def retire(parametrization: SVDParametrization, name: str) -> None:
    """Takes note that a weight was folded: neither its factors nor the weight before them are trained any more."""
    global _count
    _count += 1
    before = [weight for weight in _successors if successor(weight) is parametrization]
    for tensor in (*before, *parametrization.factors):
        _successors[tensor] = name


def forget(weight: Tensor) -> None:
    """The weight is in its place again; while a weak reference to it is kept, torch could not swap it."""
    _successors.pop(weight, None)


def _before_a_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Warns, once for each registration, where an optimizer trains a weight that no forward reads any more."""
    if _looked_at.get(optimizer, 0) == _count:
        return
    _looked_at[optimizer] = _count
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = set(map(id, held))
    idle = [
        name_of(parametrization.parametrization_list)
        for parameter in held
        if (parametrization := successor(parameter)) is not None
        and not any(id(factor) in known for factor in parametrization.factors)
    ]
    if idle:
        warn(
            f"{type(optimizer).__name__} holds {', '.join(idle)} from before registration, and not the factors that "
            "took the place; call spectral_param.add_factors_(optimizer, model), or register before it is built."
        )
    folded = dict.fromkeys(name for parameter in held if isinstance(name := _successors.get(parameter), str))
    if folded:
        warn(
            f"{type(optimizer).__name__} holds {', '.join(folded)} from before remove_svd_parametrization, and not the "
            "plain weight that took the place; build it anew."
        )


register_optimizer_step_pre_hook(_before_a_step)
