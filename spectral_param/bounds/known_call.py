"""Whether a call of a module does what is known of its class: a bound holds for the ``forward`` that runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, get_args, get_type_hints

from torch import nn

from spectral_param.torch_state.private import has_global_forward_hook

Methods = Mapping[str, Any]


def methods_in_call(cls: type[nn.Module]) -> dict[str, Any]:
    """The functions that a call of an instance goes through: ``forward``, whatever methods it names, and theirs.

    ``train`` and ``eval`` are among them, since bounds speak of the module in evaluation.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.known_call import methods_in_call
        >>> "_conv_forward" in methods_in_call(nn.Conv2d)
        True
    """
    found: dict[str, Any] = {}
    names = ["__call__", "forward", "train", "eval"]
    while names:
        name = names.pop()
        method = inspect.getattr_static(cls, name, None)
        if name not in found and isinstance(method, FunctionType):
            found[name] = method
            names.extend(method.__code__.co_names)
    return found


def known_calls(*classes: type[nn.Module]) -> dict[type[nn.Module], Methods]:
    """:func:`methods_in_call` of each class.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.known_call import known_calls
        >>> list(known_calls(nn.ReLU))
        [<class 'torch.nn.modules.activation.ReLU'>]
    """
    return {cls: methods_in_call(cls) for cls in classes}


def departure(module: nn.Module, known: Methods) -> str | None:
    """What makes a call of the module another than that of the class whose methods are known.

    Args:
        module: an instance of that class, or of one derived from it.
        known: the methods, as :func:`methods_in_call` found them when the class was understood.

    Returns:
        Words for an error, after "with"; ``None`` if the same functions run.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.known_call import departure, methods_in_call
        >>> class Skip(nn.Sequential):
        ...     def forward(self, x):
        ...         return x + super().forward(x)
        >>> departure(Skip(nn.ReLU()), methods_in_call(nn.Sequential))
        "a 'forward' that is not Sequential's"
    """
    for name, method in known.items():
        keeps_to_evaluation = name in ("train", "eval") and not module.training
        if not keeps_to_evaluation and not _leads_to(_running(module, name), method):
            return f"a {name!r} that is not {method.__qualname__.split('.')[0]}'s"
    if module._forward_hooks or module._forward_pre_hooks:
        return "forward hooks, which may change its output: remove them first"
    if has_global_forward_hook():
        return "forward hooks on all modules, which may change its output: remove them first"
    return None


def check_known(argument: str, module: nn.Module, known: Mapping[type[nn.Module], Methods]) -> None:
    """Raises ``TypeError`` unless a call of the module is that of one of these classes.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.known_call import check_known, known_calls
        >>> check_known("model", nn.GELU(), known_calls(nn.ReLU))
        Traceback (most recent call last):
        TypeError: model: expected a torch.nn.ReLU, got GELU.
    """
    cls = next((cls for cls in type(module).__mro__ if cls in known), None)
    name, names = type(module).__name__, " or ".join(map(_public_name, known))
    if cls is None:
        raise TypeError(f"{argument}: expected a {names}, got {name}.")
    if change := departure(module, known[cls]):
        raise TypeError(f"{argument}: expected a {names} as it is known, got {name} with {change}.")


def by_known_call(function: Callable[..., Any], name: str | None = None) -> functools._SingleDispatchCallable[Any]:
    """``functools.singledispatch`` whose rules hold while a call of the module is that of the class they are for.

    Args:
        function: answers for all other modules.
        name: of it, in the errors.

    Returns:
        The function, with ``register`` as ``singledispatch`` gives it. A rule raises ``TypeError`` for an instance of a
        derived class that runs other functions, and for one with hooks.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.known_call import by_known_call
        >>> @by_known_call
        ... def is_linear(module):
        ...     return False
        >>> _ = is_linear.register(nn.Linear, lambda module: True)
        >>> is_linear(nn.Linear(2, 2)), is_linear(nn.ReLU())
        (True, False)
    """
    dispatch = functools.singledispatch(function)
    add, called = dispatch.register, str(name or getattr(function, "__name__", "this"))

    def register(cls: Any, rule: Callable[..., Any] | None = None) -> Any:
        if rule is None and (isinstance(cls, type) or get_args(cls)):
            return functools.partial(register, cls)
        if rule is None:
            rule, cls = cls, next(iter(get_type_hints(cls).values()))
        for one in get_args(cls) or (cls,):
            add(one, _while_known(one, rule, called))
        return rule

    dispatch.register = register  # type: ignore[method-assign, assignment]
    return dispatch


def _while_known(cls: type[nn.Module], rule: Callable[..., Any], name: str) -> Callable[..., Any]:
    known = methods_in_call(cls)

    @functools.wraps(rule)
    def checked(module: nn.Module, *others: Any) -> Any:
        if change := departure(module, known):
            raise TypeError(
                f"module: no Lipschitz bound is known for {type(module).__name__} with {change}. "
                f"A class is given its own by {name}.register."
            )
        return rule(module, *others)

    return checked


def _public_name(cls: type[nn.Module]) -> str:
    return ("torch.nn." if cls.__module__.startswith("torch.") else "") + cls.__name__


def _running(module: nn.Module, name: str) -> Any:
    """The function that runs under this name: that of the instance, except for what Python looks up on the class."""
    if name == "__call__" or name not in module.__dict__:
        return inspect.getattr_static(type(module), name, None)
    held = module.__dict__[name]
    return held.__func__ if getattr(held, "__self__", None) is module else held


def _leads_to(running: Any, method: Any) -> bool:
    """Whether it is the method itself, or registration's wrapper of it; what others wrap may do anything."""
    while running is not method:
        if not isinstance(running, FunctionType):
            return False
        if not running.__globals__.get("__name__", "").startswith("spectral_param.registration."):
            return False
        if not hasattr(running, "__wrapped__"):
            return True  # housekeeping of registered modules, which runs no forward
        running = running.__wrapped__
    return True
