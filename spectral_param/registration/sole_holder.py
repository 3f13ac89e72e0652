"""Who holds a parameter besides its module: a tied weight or a wrapped model makes registration unsafe."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_ALONE = 3  # references: the module's, and the two of asking


def check_sole_holder(module: nn.Module, tensor_name: str) -> None:
    """Raises ``ValueError`` if another module has the parameter too, or a wrapper has taken note of it.

    Args:
        module: the owner.
        tensor_name: the parameter's name.
    """
    weight = module._parameters[tensor_name]
    if sys.getrefcount(weight) <= _ALONE:  # which spares a search among all objects
        return
    owner = type(module).__name__
    twice = [name for name, p in module._parameters.items() if p is weight and name != tensor_name]
    if twice:
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} is tied to its {twice[0]!r}.")
    for referrer in gc.get_referrers(weight):
        if isinstance(referrer, dict) and referrer is not module._parameters:
            for other in _owners(referrer, "_parameters"):
                names = [name for name, p in referrer.items() if p is weight]
                raise ValueError(
                    f"tensor_name: {tensor_name!r} of {owner} is tied to {names[0]!r} of {type(other).__name__}, "
                    "and registering would untie them."
                )
        if isinstance(referrer, list):
            for wrapper in _owners(referrer, "_module_parameters"):
                if isinstance(wrapper, DistributedDataParallel):
                    raise ValueError(
                        f"module: {owner} is wrapped in DistributedDataParallel; register before wrapping."
                    )


def _owners(value: Any, attribute: str) -> list[nn.Module]:
    """Modules that have this very object as that attribute."""
    referrers = gc.get_referrers(value)
    found = [r for r in referrers if isinstance(r, nn.Module)]
    for namespace in referrers:
        if isinstance(namespace, dict) and namespace.get(attribute) is value:
            found += [r for r in gc.get_referrers(namespace) if isinstance(r, nn.Module)]
    return [module for module in found if getattr(module, "__dict__", {}).get(attribute) is value]
