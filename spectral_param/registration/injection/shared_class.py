"""The class of registered modules: one for each plain class and set of registered names, however many instances.

Torch gives every parametrized instance a class of its own. Here instances share one, so that they are compiled as one
and stacked as one; what torch then does to the class for the sake of one instance must not reach the others.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

from torch import nn

from spectral_param.parametrization.lookup import parametrization_lists, registered_names
from spectral_param.registration.injection import watch
from spectral_param.registration.injection.teaching import plain_class, teach
from spectral_param.registration.injection.weight_property import foreign_property, weight_property

_classes: weakref.WeakValueDictionary[tuple[type, tuple[str, ...], tuple[str, ...]], type] = (
    weakref.WeakValueDictionary()
)
"""By plain class, parametrized names, and those of them that are ours. Written by :func:`shared_class` alone."""


class _Shared(type):
    """Of a shared class: properties stay, since each looks up whether its own instance is parametrized."""

    def __setattr__(cls, name: str, value: Any) -> None:
        if isinstance(value, property) and name not in cls.__dict__:  # torch parametrizes a further tensor
            value = foreign_property(name)
        elif isinstance(cls.__dict__.get(name), property):
            return
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        if not isinstance(cls.__dict__.get(name), property):  # else torch removes a parametrization of one instance
            super().__delattr__(name)


def shared_class(base: type[nn.Module], tensor_names: tuple[str, ...], ours: tuple[str, ...]) -> type[nn.Module]:
    """The class for instances of ``base`` with these tensors parametrized.

    Args:
        base: the plain class.
        tensor_names: all parametrized tensors of the instance.
        ours: those that an SVD holds.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization
        >>> a, b = (register_svd_parametrization(nn.Linear(3, 3)) for _ in range(2))
        >>> type(a) is type(b), type(a).__bases__[0] is nn.Linear
        (True, True)
    """
    key = base, tensor_names, ours
    found = _classes.get(key)
    if found is None:
        properties = {name: weight_property(name) if name in ours else foreign_property(name) for name in tensor_names}
        metaclass = _Shared if type(base) is type else type("_Shared", (_Shared, type(base)), {})
        members = {**properties, **teach(base), **_COPYING, "__module__": base.__module__}
        found = _classes.setdefault(key, metaclass(f"Parametrized{base.__name__}", (base,), members))  # or a thread's
    return found


# --------------------------------------------------------------------------------------------------- copying, pickling


def rebuild(
    base: Any, tensor_names: tuple[str, ...], ours: tuple[str, ...], arguments: Any = (), options: Any = None
) -> Any:
    """An empty registered module, for a copy or a pickle to fill.

    Args:
        base: the plain class.
        tensor_names: all parametrized tensors.
        ours: those that an SVD holds.
        arguments: for the class's own ``__new__``.
        options: named ones for it.
    """
    module = base.__new__(base, *arguments, **(options or {}))
    becomes = shared_class(base, tensor_names, ours)
    try:
        module.__class__ = Unfilled
    except TypeError:  # memory laid out in its own way, as by __slots__
        module.__class__ = becomes
    else:
        module._becomes = becomes
    return module


class Unfilled(nn.Module):
    """What :func:`rebuild` gives, until its state is set; a class of a known name, which ``torch.load`` can allow."""

    _becomes: type[nn.Module]

    def __setstate__(self, state: Any) -> None:
        becomes = self._becomes
        object.__delattr__(self, "_becomes")
        self.__class__ = becomes  # type: ignore[assignment]
        self.__setstate__(state)


def _reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
    watch.tell_of_writes(self)
    base = plain_class(self)
    arguments, options = (), {}
    if hasattr(base, "__getnewargs_ex__"):
        arguments, options = self.__getnewargs_ex__()
    elif hasattr(base, "__getnewargs__"):
        arguments = self.__getnewargs__()
    names = tuple(parametrization_lists(self)), tuple(registered_names(self))
    return rebuild, (base, *names, arguments, options), self.__getstate__()


def _getstate(self: Any) -> Any:
    base = plain_class(self)
    state = getattr(base, "__getstate__", None)
    # object's own, from Python 3.11 on, is the dictionary; another is the class's
    return self.__dict__.copy() if state in (None, getattr(object, "__getstate__", None)) else state(self)


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    base = plain_class(self)
    if hasattr(base, "__deepcopy__"):
        watch.tell_of_writes(self)
        return base.__deepcopy__(self, memo)
    build, arguments, state = _reduce(self, 4)
    twin = build(*arguments)
    memo[id(self)] = twin
    twin.__setstate__(copy.deepcopy(state, memo))
    return twin


_COPYING = {"__reduce_ex__": _reduce, "__getstate__": _getstate, "__deepcopy__": _deepcopy}
