"""Optimizers that take whatever has two dimensions for a matrix, as the factors of a weight in chunks are not.

Each row of theirs is the reflectors or the σ of a chunk, one after the other.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from spectral_param.registration.injection.svd_list import SVDList
from spectral_param.registration.injection.whereabouts import name_of
from spectral_param.torch_state.users_line import warn

_looked_at: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def _before_a_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Warns, at the first step of Muon, of factors that it holds; a group may say that it is not for it."""
    kind = type(optimizer).__name__
    if "muon" not in kind.lower() or optimizer in _looked_at:
        return
    _looked_at.add(optimizer)
    groups = [group for group in optimizer.param_groups if group.get("use_muon", True)]
    held = {id(parameter) for group in groups for parameter in group["params"] if parameter.dim() > 1}
    lists = [one for one in gc.get_objects() if issubclass(type(one), SVDList)]
    names = [name_of(one) for one in lists if any(id(factor) in held for factor in one._parameters.values())]
    if names:
        warn(
            f"{kind} holds factors of {', '.join(names)}, whose two dimensions are chunks and no matrix; leave to "
            "another optimizer the parameters with '.parametrizations.' in their names."
        )


register_optimizer_step_pre_hook(_before_a_step)
