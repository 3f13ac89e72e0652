"""Changing weights in place, and a penalty that does it softly."""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized

import torch
from torch import Tensor, nn

from spectral_param.parametrization.blocks import matrices_of
from spectral_param.parametrization.lookup import check_module, svd_parametrizations
from spectral_param.parametrization.stacked import sigma_of_weight
from spectral_param.sigma.clipping import checked_range
from spectral_param.sigma.level import finite
from spectral_param.spectrum.dense.projection import project_
from spectral_param.spectrum.patterns import chosen_plain
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.shards import whole
from spectral_param.torch_state.users_line import warn


def clip_singular_values_(
    module: nn.Module, min: float = 0.0, max: float = math.inf, *, dense: bool | str | Sequence[str] = False
) -> nn.Module:
    """Moves every singular value of every registered weight into [min, max], in place; U and V stay.

    σ keeps its sign; what lies inside keeps its bits. Elementwise, so right on every rank and on shards. A plain weight
    takes a ``torch.linalg.svd``; :class:`~spectral_param.SpectralCap` holds a cap on it in training for less.

    Args:
        module: a module, or a whole model.
        min: the least singular value to leave, at least 0.
        max: the greatest.
        dense: whether plain weights are clipped too, or name patterns of those that are.

    Returns:
        ``module``.

    Raises:
        TypeError: if ``min`` or ``max`` is no number, or ``dense`` something else.
        ValueError: if not 0 ≤ min ≤ max, without a bound, if a σ map reaches no value in there, or another
            parametrization stands on top of an SVD; nothing is changed then.

    Warns:
        UserWarning: if there is nothing to clip, or patterns name no plain weight.

    Example:
        >>> import torch
        >>> from spectral_param import clip_singular_values_, register_svd_parametrization, singular_values
        >>> layer = torch.nn.Linear(3, 3)
        >>> layer.weight.data = torch.diag(torch.tensor([5.0, 1.0, 0.1]))
        >>> _ = clip_singular_values_(register_svd_parametrization(layer), min=0.5, max=2.0)
        >>> singular_values(layer).detach()
        tensor([2.0000, 1.0000, 0.5000])
    """
    check_module("module", module)
    if isinstance(min, str):
        raise TypeError(f"min: expected a number, got {min!r}; no weight is named, all of the module are clipped.")
    min, max = checked_range(min, max)
    if (min, max) == (0, math.inf):
        raise ValueError("min, max: expected a bound for singular values, got none.")
    found = [parametrization for _, parametrization in svd_parametrizations(module)]
    plain = chosen_plain(module, dense)
    for parametrization in found:
        parametrization.check_clip(min, max)
    _warn_of_nothing("clip_singular_values_", found, plain, dense)
    for owner, weight in plain.values():
        project_(weight, matrices_of(owner, weight), min, max)
    for parametrization in found:
        parametrization.clip_(min, max)
    return module


def renormalize_reflectors_(module: nn.Module) -> nn.Module:
    """Gives every reflector of every registered weight unit length, in place; W changes by rounding alone.

    H(u) does not depend on ‖u‖, but the size of an optimizer's step relative to u does. The paper's released code
    does this after every step.

    Args:
        module: a module, or a whole model.

    Returns:
        ``module``.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, renormalize_reflectors_
        >>> layer = register_svd_parametrization(torch.nn.Linear(3, 3))
        >>> before = layer.weight
        >>> torch.allclose(renormalize_reflectors_(layer).weight, before, atol=1e-6)
        True
    """
    check_module("module", module)
    for _, parametrization in svd_parametrizations(module):
        parametrization.renormalize_()
    return module


def spectral_penalty(module: nn.Module, center: float = 1.0, *, dense: bool | str | Sequence[str] = False) -> Tensor:
    """Σ‖σ - center‖² over every registered weight: a soft pull on the singular values.

    A plain weight takes a ``torch.linalg.svdvals``, and an SVD for its gradient; so does one that another
    parametrization has changed further.

    Args:
        module: a module, or a whole model.
        center: where σ is pulled to.
        dense: whether plain weights are pulled too, or name patterns of those that are.

    Returns:
        A scalar, differentiable; 0 where there is nothing to pull.

    Raises:
        TypeError: if ``center`` is no number, or ``dense`` something else.
        ValueError: if ``center`` is not finite.

    Warns:
        UserWarning: if there is nothing to pull, or patterns name no plain weight.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, spectral_penalty
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.diag(torch.tensor([3.0, 1.0]))
        >>> spectral_penalty(register_svd_parametrization(layer)).item()
        4.0
    """
    check_module("module", module)
    center = finite("center", center)
    found = [parametrization for _, parametrization in svd_parametrizations(module)]
    plain = chosen_plain(module, dense)
    _warn_of_nothing("spectral_penalty", found, plain, dense)
    total = torch.zeros(())
    for sigma in (*(sigma_of_weight(p).abs() for p in found), *(_plain_sigma(*owned) for owned in plain.values())):
        total = total.to(sigma.device) + (sigma - center).square().sum()
    return total


def _plain_sigma(module: nn.Module, weight: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrices_of(module, weight).of(wide(whole(weight))))


def _warn_of_nothing(asked: str, found: Sized, plain: Sized, dense: bool | str | Sequence[str]) -> None:
    if plain:
        return
    if not found:
        remedy = "dense=True takes plain ones." if dense is False else f"dense={dense!r} matches no plain one."
        warn(f"{asked}: no weight is registered; {remedy}")
    elif dense and not isinstance(dense, bool):
        warn(f"{asked}: dense={dense!r} matches no plain weight.")
