"""Layers that a model holds in plain lists, tuples and dictionaries, where torch does not find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from spectral_param.parametrization.lookup import named_modules

_OF_TORCH = frozenset(vars(nn.Module()))


def unregistered(model: nn.Module) -> dict[str, str]:
    """Parameters of modules that are in a container and not registered with the model.

    Args:
        model: any module.

    Returns:
        From a parameter's name, like ``"encoder.layers[0].weight"``, to the kind of the container.

    Example:
        >>> from torch import nn
        >>> from spectral_param.registration.unregistered import unregistered
        >>> model = nn.Module()
        >>> model.layers = [nn.Linear(2, 2, bias=False)]
        >>> unregistered(model)
        {'layers[0].weight': 'list'}
    """
    known = {id(module) for module in model.modules()} | {id(parameter) for parameter in model.parameters()}
    found = {}
    for prefix, owner in named_modules(model):
        for attribute, value in vars(owner).items():
            if attribute not in _OF_TORCH:
                name = f"{prefix}.{attribute}" if prefix else attribute
                for path, kind, module in _modules_in(name, value, known):
                    for tensor_name, parameter in module.named_parameters():
                        if id(parameter) not in known:
                            known.add(id(parameter))
                            found[f"{path}.{tensor_name}"] = kind
    return found


def _modules_in(name: str, value: Any, known: set[int]) -> Iterator[tuple[str, str, nn.Module]]:
    """The modules in a container, and in containers in it, that are not known yet, with name and kind of container."""
    if not isinstance(value, (list, tuple, Mapping)) or id(value) in known:
        return
    known.add(id(value))
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        path = f"{name}[{key!r}]"
        if isinstance(item, nn.Module):
            if id(item) not in known:
                yield path, type(value).__name__, item
        else:
            yield from _modules_in(path, item, known)
