"""What was trained on frozen bases, as an adapter: out into a file, in from one, and off for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.registration.report import some_of
from spectral_param.torch_state.shards import whole, write_

_PARTS = ("u", "sigma", "v")  # reflectors, raw numbers of σ, reflectors
_SAME_BASE = 1e-4  # of the largest σ: as far as those of one base may differ from one machine to the next


@torch.no_grad()
def adapter_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Gathers what was trained on the frozen bases of a model: reflectors and raw numbers of σ.

    With them go the σ that the bases had, by which :func:`load_adapter` sees whether it is given the same ones. A
    collective on a model that ``fully_shard`` has spread over ranks.

    Args:
        model: any module.

    Returns:
        By the qualified name of a weight with ``.u`` (p, m₁), ``.sigma`` (r,), ``.v`` (q, m₂), as far as they are
        there, and ``.start`` (r,), detached copies; blocks along a first dimension. Empty where no base is frozen.

    Example:
        >>> from torch import nn
        >>> from spectral_param import adapter_state_dict, register_svd_parametrization
        >>> layer = register_svd_parametrization(nn.Linear(6, 4), base="frozen", reflectors=2, rank=3)
        >>> {name: tuple(tensor.shape) for name, tensor in adapter_state_dict(layer).items()}
        {'weight.u': (4, 2), 'weight.sigma': (3,), 'weight.v': (6, 2), 'weight.start': (3,)}
    """
    state = {}
    for name, p in _turned(model).items():
        for part, place in zip(_PARTS, p.layout.places, strict=True):
            if place >= 0:
                state[f"{name}.{part}"] = whole(p.factors[place]).detach().clone()
        state[f"{name}.start"] = p.start.detach().clone()
    return state


@torch.no_grad()
def load_adapter(model: nn.Module, adapter: Mapping[str, Tensor] | str | os.PathLike[str]) -> nn.Module:
    """Puts an adapter onto the frozen bases of a model that is registered as the adapter's was.

    Args:
        model: any module, changed in place.
        adapter: what :func:`adapter_state_dict` gave, or the path of a file of :func:`save_adapter`.

    Returns:
        ``model``.

    Raises:
        ModuleNotFoundError: for a path, without the package safetensors.
        TypeError: if it is neither, or holds other than floating numbers.
        ValueError: if names, shapes or the σ of a base are others, or numbers not finite; nothing is changed then.

    Example:
        >>> import copy
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import adapter_state_dict, load_adapter, register_svd_parametrization
        >>> layer = register_svd_parametrization(nn.Linear(6, 4), base="frozen", reflectors=2, rank=3)
        >>> trained = copy.deepcopy(layer)
        >>> _ = nn.init.ones_(trained.parametrizations.weight.original1)
        >>> torch.equal(load_adapter(layer, adapter_state_dict(trained)).weight, trained.weight)
        True
    """
    state: Mapping[str, Tensor]
    state = _safetensors().load_file(adapter) if isinstance(adapter, (str, os.PathLike)) else adapter
    if not isinstance(state, Mapping):
        raise TypeError(f"adapter: expected a mapping of tensors or a path, got {type(adapter).__name__}.")
    bases = _turned(model)
    expected = {
        f"{name}.{part}": (p, place)
        for name, p in bases.items()
        for part, place in zip((*_PARTS, "start"), (*p.layout.places, -2), strict=True)
        if place != -1
    }
    _check_names(expected, state)
    for key, (p, place) in expected.items():
        own = p.start if place < 0 else p.factors[place]
        if not (isinstance(state[key], Tensor) and state[key].is_floating_point()):
            got = getattr(state[key], "dtype", type(state[key]).__name__)
            raise TypeError(f"adapter: expected a tensor of floating numbers for {key}, got {got}.")
        if state[key].shape != own.shape:
            got = tuple(state[key].shape)
            raise ValueError(f"adapter: expected {key} of shape {tuple(own.shape)}, got {got}; register as it was.")
        if place < 0 and own.numel():
            theirs = state[key].to(own)
            if not (theirs - own).abs().amax() <= _SAME_BASE * own.abs().amax():
                raise ValueError(f"adapter: expected one of the same base, got other singular values for {key}.")
        if not state[key].isfinite().all():
            raise ValueError(f"adapter: expected finite numbers for {key}, got others.")
    for key, (p, place) in expected.items():
        if place >= 0:
            write_(p.factors[place], state[key].to(p.factors[place].device))
    return model


def save_adapter(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Writes :func:`adapter_state_dict` into a safetensors file.

    Args:
        model: any module.
        path: of the file.

    Raises:
        ModuleNotFoundError: without the package safetensors.
        ValueError: if no base of the model is frozen.
    """
    state = adapter_state_dict(model)
    if not state:
        raise ValueError("model: expected a weight registered with base='frozen', got none.")
    _safetensors().save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Has every frozen base of a model be its weight within, to the bit; in all threads.

    Args:
        model: any module.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, without_adapter
        >>> layer = nn.Linear(6, 4)
        >>> x = torch.randn(2, 6)
        >>> before = layer(x)
        >>> _ = register_svd_parametrization(layer, base="frozen", reflectors=2, rank=3)
        >>> with without_adapter(layer):
        ...     torch.equal(layer(x), before)
        True
    """
    bases = [p for p in _turned(model).values() if not p.is_off]
    for p in bases:
        p.is_off = True
    try:
        yield
    finally:
        for p in bases:
            p.is_off = False


def _turned(model: nn.Module) -> dict[str, TurnedParametrization]:
    return {name: p for name, p in svd_parametrizations(model) if isinstance(p, TurnedParametrization)}


def _check_names(expected: Mapping[str, Any], adapter: Mapping[str, Tensor]) -> None:
    missing, unknown = [k for k in expected if k not in adapter], [k for k in adapter if k not in expected]
    if not expected:
        raise ValueError("model: expected a weight registered with base='frozen', got none.")
    if missing:
        raise ValueError(
            f"adapter: expected numbers for each frozen base of the model, got none for {some_of(missing)}."
        )
    if unknown:
        raise ValueError(f"adapter: expected frozen bases of the model alone, got {some_of(unknown)}.")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "path: files of adapters need the package safetensors: pip install safetensors"
        ) from error
    return safetensors.torch
