"""What was trained on frozen bases, as an adapter: out into a file, in from one, and off for a while."""

from __future__ import annotations

import os
import threading
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.registration.report import some_of
from spectral_param.sigma.level import like
from spectral_param.torch_state.shards import whole, write_
from spectral_param.torch_state.users_line import warn

_SAME_BASE = 1e-4  # of its norm: as far as the sums over one base may differ from one machine to the next
_SAME_SIGMA = 1e-3  # of the largest: as far as a σ map may move what is in its range


@torch.no_grad()
def adapter_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Gathers what was trained on the frozen bases of a model: reflectors and σ.

    With them go two numbers of each base, by which :func:`load_adapter` sees whether it is given the same one. What
    else was trained, such as biases that were not frozen, is not among them. A collective on a model that
    ``fully_shard`` has spread over ranks.

    Args:
        model: any module.

    Returns:
        By the qualified name of a weight with ``.u`` (p, m₁), ``.sigma`` (r,), float32 or float64, ``.v`` (q, m₂), as
        far as they are there, and ``.base`` (2,), detached copies; blocks along a first dimension. Empty where no base
        is frozen.

    Example:
        >>> from torch import nn
        >>> from spectral_param import adapter_state_dict, register_svd_parametrization
        >>> layer = register_svd_parametrization(nn.Linear(6, 4), base="frozen", reflectors=2, rank=3)
        >>> {name: tuple(tensor.shape) for name, tensor in adapter_state_dict(layer).items()}
        {'weight.u': (4, 2), 'weight.sigma': (3,), 'weight.v': (6, 2), 'weight.base': (2,)}
    """
    return {
        f"{name}.{part}": whole(value).detach().clone()
        for name, p in _turned(model).items()
        for part, value in _parts(p).items()
    }


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
        FileNotFoundError: if there is no such file.
        TypeError: if it is neither, or holds other than floating numbers.
        ValueError: if the file is none of safetensors, names, shapes or a base are others, σ outside of the range of a
            σ map, or numbers not finite; nothing is changed then.

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
    state = _read(adapter) if isinstance(adapter, (str, os.PathLike)) else adapter
    if not isinstance(state, Mapping):
        raise TypeError(f"adapter: expected a mapping of tensors or a path, got {type(adapter).__name__}.")
    bases = _turned(model)
    expected = {f"{name}.{part}": (p, part, own) for name, p in bases.items() for part, own in _parts(p).items()}
    fixed = {key for key, (p, part, _) in expected.items() if part == "sigma" and p.raw_sigma is None}
    _check_names(expected, state, optional=fixed)  # which files of older versions lack
    written = []
    for key, (p, part, own) in expected.items():
        if key not in state:
            continue
        given = _checked(key, state[key], own).to(own.device)
        near = max(_SAME_BASE, torch.finfo(p.dtype).eps / 8)  # a base in half precision is rounded
        if part == "base" and not (given.to(own) - own).abs().amax() <= near * own[0]:
            raise ValueError(f"adapter: expected one of the same base, got other numbers for {key}.")
        if part == "sigma":
            raw, given = p.raw_sigma, _raw(key, p, given, own)
            written += [] if raw is None else [(raw, given)]
        elif part != "base":
            written.append((own, given))
    for factor, value in written:
        write_(factor, value)
    return model


def save_adapter(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Writes :func:`adapter_state_dict` into a safetensors file.

    Args:
        model: any module.
        path: of the file.

    Raises:
        ModuleNotFoundError: without the package safetensors.
        ValueError: if no base of the model is frozen, or ``path`` is a folder or in one that is not there.

    Warns:
        UserWarning: if other parameters of the model are trained, which the file does not have.
    """
    ours = {id(factor) for p in _turned(model).values() for factor in p.factors}
    others = [name for name, own in model.named_parameters() if own.requires_grad and id(own) not in ours]
    if ours and others:
        warn(f"{some_of(others)}: trained, and not in the file of the adapter; save them too, or freeze them before.")
    if not ours:
        raise ValueError("model: expected a weight registered with base='frozen', got none.")
    if Path(path).is_dir() or not Path(path).parent.is_dir():
        raise ValueError(f"path: expected a file in a folder that is there, got {os.fspath(path)!r}.")
    state = adapter_state_dict(model)
    _safetensors().torch.save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Has every frozen base of a model be its weight within, to the bit; in all threads, until the last has left.

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
    bases = list(_turned(model).values())
    _switch(bases, 1)
    try:
        yield
    finally:
        _switch(bases, -1)


_SWITCHING = threading.Lock()


def _switch(bases: Iterable[TurnedParametrization], by: int) -> None:
    with _SWITCHING:
        for p in bases:
            p.times_off += by
            p.is_off = p.times_off > 0


def _read(path: str | os.PathLike[str]) -> Mapping[str, Tensor]:
    package, expected = _safetensors(), "adapter: expected a file that save_adapter wrote"
    try:
        state: Mapping[str, Tensor] = package.torch.load_file(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{expected}, found none at {os.fspath(path)!r}.") from error
    except (package.SafetensorError, OSError) as error:
        raise ValueError(f"{expected}, got {os.fspath(path)!r}: {error}.") from error
    return state


def _checked(key: str, given: Any, own: Tensor) -> Tensor:
    if not (isinstance(given, Tensor) and given.is_floating_point()):
        got = getattr(given, "dtype", type(given).__name__)
        raise TypeError(f"adapter: expected a tensor of floating numbers for {key}, got {got}.")
    if given.shape != own.shape:
        shapes = tuple(own.shape), tuple(given.shape)
        raise ValueError(f"adapter: expected {key} of shape {shapes[0]}, got {shapes[1]}; register as it was.")
    if not given.to(own.dtype).isfinite().all():
        raise ValueError(f"adapter: expected finite numbers for {key}, got others.")
    return given


def _raw(key: str, p: TurnedParametrization, given: Tensor, own: Tensor) -> Tensor:
    """The raw numbers of σ under the σ map that is there, which may be another than it was trained under."""
    sigma = given.to(own)
    low, high = like(p.sigma_map.low, sigma), like(p.sigma_map.high, sigma)
    within = torch.where(sigma < low, low, torch.where(sigma > high, high, sigma))
    eps = max(torch.finfo(dtype).eps for dtype in (given.dtype, torch.float32))  # it may have been narrower before
    is_rounding = (sigma - within).abs() <= eps * sigma.abs()
    sigma = torch.where(is_rounding, within, sigma)
    raw: Tensor = p.sigma_map.recover(sigma)
    if not (p.sigma_map(raw) - sigma).abs().amax() <= _SAME_SIGMA * sigma.abs().amax():
        raise ValueError(f"adapter: expected σ within the range of {p.sigma_map} for {key}, got others.")
    return raw


def _parts(p: TurnedParametrization) -> dict[str, Tensor]:
    """The reflectors, the trained σ in full precision, and what tells the base from another."""
    at_u, _, at_v = p.layout.places
    parts = {"u": p.factors[at_u]} if at_u >= 0 else {}
    parts |= {"sigma": p.leading_sigma} if p.rank else {}
    parts |= {"v": p.factors[at_v]} if at_v >= 0 else {}
    return parts | {"base": _fingerprint(p)}


def _fingerprint(p: TurnedParametrization) -> Tensor:
    """The norm of W₀, and its product with two waves, (2,)."""
    base = p.matrices.of(p.base).double()
    across, down = (torch.arange(n, dtype=base.dtype, device=base.device).cos() for n in base.shape[:0:-1])
    each = torch.arange(1.0, len(base) + 1, dtype=base.dtype, device=base.device).cos()
    return torch.stack([torch.linalg.vector_norm(base), (each * ((base @ across) @ down)).sum()]).float()


def _turned(model: nn.Module) -> dict[str, TurnedParametrization]:
    return {name: p for name, p in svd_parametrizations(model) if isinstance(p, TurnedParametrization)}


def _check_names(expected: Mapping[str, Any], adapter: Mapping[str, Tensor], optional: Container[str]) -> None:
    missing = [k for k in expected if k not in adapter and k not in optional]
    unknown = [k for k in adapter if k not in expected]
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
    return safetensors
