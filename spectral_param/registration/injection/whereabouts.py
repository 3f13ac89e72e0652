"""Where a registered weight is in the model that it belongs to, so that warnings can name it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch import nn

from spectral_param.parametrization.lookup import qualified_name

_parents: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str] | None] = weakref.WeakKeyDictionary()
"""The parent of each module, weakly, and its name there; ``None`` for one that had none."""


def name_of(parametrization_list: nn.Module) -> str:
    """The qualified name of a registered weight in the model around it, or ``"Linear.weight"`` for a lone layer.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization
        >>> from spectral_param.registration.injection.whereabouts import name_of
        >>> model = nn.Sequential(nn.Tanh(), register_svd_parametrization(nn.Linear(3, 3)))
        >>> name_of(model[1].parametrizations.weight)
        '1.weight'
    """
    names: list[str] = []
    module = parametrization_list
    while (found := _parent(module)) is not None:
        module, name = found
        names.insert(0, name)
    name = qualified_name(".".join(names))
    return name if "." in name else f"{getattr(module, '_plain_class', type(module)).__name__}.{name}"


def _parent(module: nn.Module) -> tuple[nn.Module, str] | None:
    if module not in _parents or not _is_current(module):
        _look_around()
    found = _parents.get(module)
    parent = None if found is None else found[0]()
    return None if parent is None or found is None else (parent, found[1])


def _is_current(module: nn.Module) -> bool:
    found = _parents[module]
    if found is None:
        return True
    parent = found[0]()
    return parent is not None and parent._modules.get(found[1]) is module


def _look_around() -> None:
    """Goes through all modules that there are, which takes a while, and so is done where there is a warning alone."""
    _parents.clear()
    # by type, since isinstance asks lazy objects for their class
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module) and "_modules" in one.__dict__]
    for module in modules:
        _parents.setdefault(module, None)
        for name, child in module._modules.items():
            if child is not None:
                _parents[child] = weakref.ref(module), name
