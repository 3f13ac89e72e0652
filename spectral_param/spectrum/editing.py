"""Changing registered weights in place, and a penalty that does it softly."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import svd_parametrizations


def clip_singular_values_(module: nn.Module, min: float = 0.0, max: float = math.inf) -> nn.Module:
    """Moves every singular value of every registered weight into [min, max], in place; U and V stay.

    σ keeps its sign; what lies inside keeps its bits. Elementwise, so right on every rank and on shards.

    Args:
        module: a module, or a whole model.
        min: the least singular value to leave, at least 0.
        max: the greatest.

    Returns:
        ``module``.

    Raises:
        ValueError: if not 0 ≤ min ≤ max, or if a σ map reaches no value in there; nothing is changed then.

    Example:
        >>> import torch
        >>> from spectral_param import clip_singular_values_, register_svd_parametrization, singular_values
        >>> layer = torch.nn.Linear(3, 3)
        >>> layer.weight.data = torch.diag(torch.tensor([5.0, 1.0, 0.1]))
        >>> _ = clip_singular_values_(register_svd_parametrization(layer), min=0.5, max=2.0)
        >>> singular_values(layer).detach()
        tensor([2.0000, 1.0000, 0.5000])
    """
    found = [parametrization for _, parametrization in svd_parametrizations(module)]
    for parametrization in found:
        parametrization.check_clip(min, max)
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
    for _, parametrization in svd_parametrizations(module):
        parametrization.renormalize_()
    return module


def spectral_penalty(module: nn.Module, center: float = 1.0) -> Tensor:
    """Σ‖σ - center‖² over every registered weight: a soft pull on the singular values.

    Args:
        module: a module, or a whole model.
        center: where σ is pulled to.

    Returns:
        A scalar, differentiable; 0 where no weight is registered.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, spectral_penalty
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.diag(torch.tensor([3.0, 1.0]))
        >>> spectral_penalty(register_svd_parametrization(layer)).item()
        4.0
    """
    total = torch.zeros(())
    for _, parametrization in svd_parametrizations(module):
        term = (parametrization.sigma.abs() - center).square().sum()
        total = total.to(term.device) + term
    return total
