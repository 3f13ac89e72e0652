"""Who holds a parameter besides its module: a tied weight or a wrapped model makes registration unsafe."""

from __future__ import annotations

import gc
import sys
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def tied_to(module: nn.Module, tensor_name: str) -> str | None:
    """Who else has the parameter, in words; ``None`` for nobody.

    Args:
        module: the owner.
        tensor_name: the parameter's name.

    Example:
        >>> from torch import nn
        >>> from spectral_param.registration.injection.sole_holder import tied_to
        >>> embedding, head = nn.Embedding(5, 3), nn.Linear(3, 5)
        >>> head.weight = embedding.weight
        >>> tied_to(head, "weight")
        "'weight' of Embedding"
    """
    if _is_alone(module, tensor_name):
        return None
    weight = module._parameters[tensor_name]
    assert weight is not None
    twice = [name for name, p in module._parameters.items() if p is weight and name != tensor_name]
    if twice:
        return f"its {twice[0]!r}"
    tied = owner_of_parameter(weight, but=module)
    return None if tied is None else f"{tied[1]!r} of {type(tied[0]).__name__}"


def check_sole_holder(module: nn.Module, tensor_name: str) -> None:
    """Raises ``ValueError`` if another module has the parameter too, or a wrapper has taken note of it.

    Args:
        module: the owner.
        tensor_name: the parameter's name.
    """
    owner, tied = type(module).__name__, tied_to(module, tensor_name)
    if tied is not None:
        raise ValueError(
            f"tensor_name: {tensor_name!r} of {owner} is tied to {tied}, and registering would untie them."
        )
    if not _is_alone(module, tensor_name) and _is_wrapped(module._parameters[tensor_name]):
        raise ValueError(f"module: {owner} is wrapped in DistributedDataParallel; register before wrapping.")


def check_not_wrapped(module: nn.Module, tensor_name: str, parametrization_list: nn.Module) -> None:
    """Raises ``ValueError`` if ``DistributedDataParallel`` reduces the gradients of these factors.

    Args:
        module: the owner of the registered weight.
        tensor_name: the weight.
        parametrization_list: what has its factors.
    """
    own = parametrization_list._parameters
    held = [factor for name in own if _others(own, name) > 0 and (factor := own[name]) is not None]
    if held and _is_wrapped(*held):
        raise ValueError(
            f"module: {tensor_name!r} of {type(module).__bases__[0].__name__} is wrapped in DistributedDataParallel, "
            "which would not reduce a plain weight's gradient; fold the model that is inside, ddp.module, after "
            "letting the wrapper go."
        )


def owner_of_parameter(weight: Tensor, but: nn.Module | None = None) -> tuple[nn.Module, str] | None:
    """A module that has the parameter, and its name there; ``None`` for none.

    Args:
        weight: a parameter.
        but: a module that does not count.
    """
    for referrer in gc.get_referrers(weight):
        if isinstance(referrer, dict) and (but is None or referrer is not but._parameters):
            for other in _owners(referrer, "_parameters"):
                return other, next(name for name, p in referrer.items() if p is weight)
    return None


def _is_alone(module: nn.Module, tensor_name: str) -> bool:
    """Whether nobody else has the parameter, which spares a search among all objects."""
    own = module._parameters
    again = vars(module).get("_flat_weights", ())  # where recurrent modules have theirs too
    return _others(own, tensor_name) <= sum(w is own[tensor_name] for w in again)


def _others(parameters: dict[str, Any], name: str) -> int:
    """How many references to a parameter there are besides the dictionary's, and the one of asking."""
    return sys.getrefcount(parameters[name]) - 2


def _is_wrapped(*weights: Tensor | None) -> bool:
    return any(
        isinstance(wrapper, DistributedDataParallel)
        for referrer in gc.get_referrers(*weights)
        if isinstance(referrer, list)
        for wrapper in _owners(referrer, "_module_parameters")
    )


def _owners(value: Any, attribute: str) -> list[nn.Module]:
    """Modules that have this very object as that attribute."""
    referrers = gc.get_referrers(value)
    found = [r for r in referrers if isinstance(r, nn.Module)]
    for namespace in referrers:
        if isinstance(namespace, dict) and namespace.get(attribute) is value:
            found += [r for r in gc.get_referrers(namespace) if isinstance(r, nn.Module)]
    return [module for module in found if getattr(module, "__dict__", {}).get(attribute) is value]
