"""Files that others read: the state of a model as if none of its weights were registered, out and in."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import check_module, parametrization_lists, registered_names
from spectral_param.parametrization.mismatch import APPROXIMATE, SigmaMoved, TooFewReflectors, relative_difference
from spectral_param.registration.report import percent, some_of
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.shards import is_shard, spread_as
from spectral_param.torch_state.users_line import warn


@torch.no_grad()
def plain_state_dict(model: nn.Module) -> OrderedDict[str, Any]:
    """Gives the ``state_dict`` that the model would have if nothing were registered, without a copy of the model.

    Keys and their order are the plain model's; each registered weight is evaluated, in its own dtype, and all else is
    what ``model.state_dict()`` gives. Wrappers such as DDP add their names as they do there, so hand in the model
    inside. Where a host renames keys when it saves, let it save these:
    ``model.save_pretrained(folder, state_dict=plain_state_dict(model))`` with transformers.

    On a model that ``fully_shard`` has spread over ranks a collective: all call it, and each gets whole weights where
    they are registered.

    Args:
        model: any module.

    Returns:
        The state, without a graph. What is tied or shared stands under each of its names, as one tensor.

    Example:
        >>> from torch import nn
        >>> from spectral_param import plain_state_dict, register_all
        >>> def build():
        ...     return nn.Sequential(nn.Linear(3, 2), nn.LSTM(2, 2, bias=False))
        >>> model = build()
        >>> _ = register_all(model)
        >>> list(plain_state_dict(model))
        ['0.weight', '0.bias', '1.weight_ih_l0', '1.weight_hh_l0']
        >>> build().load_state_dict(plain_state_dict(model))
        <All keys matched successfully>
    """
    waiting, ours = dict(_registered(model)), _lists(model)
    state = model.state_dict()
    weights: dict[int, Tensor] = {}
    plain: OrderedDict[str, Any] = OrderedDict()
    for key, value in state.items():
        above = _prefixes(key)
        for prefix in above:
            if prefix in waiting:  # a module's own parameters come before what it contains
                plain.update(_own(waiting.pop(prefix), prefix, state, weights))
        if ours.keys().isdisjoint(above):
            plain.setdefault(key, value)
    remaining = {prefix for key in plain for prefix in _prefixes(key)}
    emptied = {f"{prefix}parametrizations." for prefix, _ in _registered(model)} - remaining
    plain._metadata = OrderedDict(  # type: ignore[attr-defined]  # where torch keeps the versions of modules
        (path, version)
        for path, version in getattr(state, "_metadata", {}).items()
        if ours.keys().isdisjoint(_prefixes(f"{path}.")) and f"{path}." not in emptied
    )
    return plain


def load_plain_state_dict(model: nn.Module, state: Mapping[str, Any], strict: bool = True) -> Any:
    """Loads a state of the plain model: its weights are factorized, in place, and the optimizer keeps its hold.

    It goes through ``model.load_state_dict``, which takes factors as well. Where a host renames keys when it loads,
    let it load its file into a plain model first, as ``load_plain_state_dict(model, plain.state_dict())`` with
    ``plain = Model.from_pretrained(folder)`` of transformers; or register what it has loaded.

    Into a model that ``fully_shard`` has spread over ranks all of them load the same, whole or in parts.

    Args:
        model: any module.
        state: keys and tensors of the plain model, such as :func:`plain_state_dict` gives.
        strict: as for ``torch.nn.Module.load_state_dict``.

    Returns:
        As torch, the missing and the unexpected keys, by the names that they have in the plain model.

    Raises:
        TypeError: if ``state`` is no mapping.
        RuntimeError: as torch, for weights that do not fit, are not finite or, where ``strict``, for other keys.

    Warns:
        UserWarning: once for all, if too few reflectors or the range of the σ map keep weights from being met.

    Example:
        >>> from torch import nn
        >>> from spectral_param import load_plain_state_dict, register_svd_parametrization
        >>> load_plain_state_dict(register_svd_parametrization(nn.Linear(3, 2)), nn.Linear(3, 2).state_dict())
        <All keys matched successfully>
    """
    ours, changes = _lists(model), (TooFewReflectors, SigmaMoved)
    if not isinstance(state, Mapping):
        remedy = "; torch.load(path) reads one from a file" if isinstance(state, (str, os.PathLike)) else ""
        raise TypeError(f"state: expected a mapping of tensors, got {type(state).__name__}{remedy}.")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loaded = model.load_state_dict(_spread(model, state), strict=strict)
    if any(issubclass(warning.category, changes) for warning in told):
        _tell_of_changes(model, state)
    for warning in told:
        if not issubclass(warning.category, changes):
            warn(str(warning.message), warning.category)
    names = [ours[own[0]] if (own := [p for p in _prefixes(key) if p in ours]) else key for key in loaded.missing_keys]
    return loaded._replace(missing_keys=list(dict.fromkeys(names)))


def _spread(model: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state with its whole tensors as the model's own are spread over ranks."""
    own = model.state_dict()
    if not any(map(is_shard, own.values())):
        return state
    spread = OrderedDict((key, spread_as(own[key], value) if key in own else value) for key, value in state.items())
    spread._metadata = getattr(state, "_metadata", OrderedDict())  # type: ignore[attr-defined]
    return spread


@torch.no_grad()
def _tell_of_changes(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Warns of the weights that are not what the state has."""
    present = plain_state_dict(model)
    differences = {
        key: relative_difference(wide(present[key]), wide(state[key].to(present[key])))
        for key in _lists(model).values()
        if key in state
    }
    most = max(differences, key=lambda key: differences[key])
    names = [key for key, difference in differences.items() if difference > APPROXIMATE] or [most]
    warn(
        f"{some_of(names)}: too few reflectors or too narrow a range of σ to meet the weight that was loaded; {most} "
        f"differs most, by {percent(differences[most])}. All reflectors, and a σ map that reaches it, would meet it."
    )


def _registered(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with registered weights, at each of their places, by what their keys begin with."""
    check_module("model", model)
    for path, module in model.named_modules(remove_duplicate=False):
        if registered_names(module):
            yield f"{path}." if path else "", module


def _lists(model: nn.Module) -> dict[str, str]:
    """From how the keys of each registered weight's factors begin to the key of the plain weight."""
    return {
        f"{prefix}parametrizations.{name}.": f"{prefix}{name}"
        for prefix, module in _registered(model)
        for name in registered_names(module)
    }


def _prefixes(key: str) -> list[str]:
    """``"a.b.c"`` → ``["", "a.", "a.b."]``."""
    parts = key.split(".")
    return ["".join(f"{part}." for part in parts[:depth]) for depth in range(len(parts))]


def _own(
    module: nn.Module, prefix: str, state: Mapping[str, Any], weights: dict[int, Tensor]
) -> Iterator[tuple[str, Any]]:
    """The module's own parameters as the plain module would have them; ``weights`` are those evaluated so far."""
    lists, registered = parametrization_lists(module), registered_names(module)
    for name in lists[registered[0]][0].parameter_order:
        key = f"{prefix}{name}"
        if key in state:
            yield key, state[key]
        elif name in registered and f"{prefix}parametrizations.{name}.original0" in state:
            held = lists[name]
            if id(held) not in weights:
                weights[id(held)] = held().detach()
            yield key, weights[id(held)]
