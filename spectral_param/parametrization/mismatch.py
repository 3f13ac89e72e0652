"""Telling the user where a weight cannot be met."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from spectral_param.sigma import SigmaMap
from spectral_param.sizes import Sizes

APPROXIMATE = 1e-3
"""Relative error of a fit from which the user is told."""


class TooFewReflectors(UserWarning):
    """Reflectors turn U and V too little to meet a weight."""


class SigmaMoved(UserWarning):
    """σ of a weight lie outside of the range of its σ map."""


def warn_of_differences(blocks: Tensor, sigma: Tensor, sizes: Sizes, sigma_map: SigmaMap) -> None:
    """Warns if too few reflectors, or the range of the σ map, keep W from what it should be.

    Args:
        blocks: what was to be met, (chunks, p, q).
        sigma: σ of the fit, (chunks, k).
        sizes: of a block.
        sigma_map: the σ map.
    """
    if min(sizes.m1, sizes.m2) < sizes.k:
        # σ is the diagonal of UᵀWV, so that what is missed is orthogonal to what is met
        scale = blocks.abs().amax().clamp_min(torch.finfo(blocks.dtype).tiny).item()
        size = torch.linalg.vector_norm(blocks / scale, dtype=torch.float64).item()
        met = torch.linalg.vector_norm(sigma / scale).item() / size if size else 1.0
        error = math.sqrt(max(0.0, 1 - met * met))
        if error > APPROXIMATE:
            warnings.warn(
                f"reflectors=({sizes.m1}, {sizes.m2}) of {sizes.k} turn U and V too little to meet the weight: "
                f"it changes by {error:.1%} in the Frobenius norm; base='frozen' keeps it.",
                TooFewReflectors,
                stacklevel=4,
            )
    warn_of_moved_sigma(sigma, sigma_map)


def warn_of_moved_sigma(sigma: Tensor, sigma_map: SigmaMap) -> None:
    """Warns if the range of the σ map keeps some σ from what they should be.

    Args:
        sigma: (…, k), of any sign.
        sigma_map: the σ map.
    """
    moved = (sigma_map(sigma_map.inverse(sigma)) - sigma).abs()
    count = int((moved > 1e-6 * sigma.abs().amax().clamp_min(1.0)).sum())
    if count:
        warnings.warn(
            f"{sigma_map}: {count} of {sigma.numel()} σ of the weight lie outside its range "
            f"and start inside it, moved by up to {moved.amax():.3g}.",
            SigmaMoved,
            stacklevel=5,
        )


def relative_difference(near: Tensor, weight: Tensor) -> float:
    """``‖near - weight‖ / ‖weight‖`` in the Frobenius norm, whatever the scale.

    Args:
        near: any tensor.
        weight: of its shape and dtype, float32 or float64.

    Example:
        >>> import torch
        >>> from spectral_param.parametrization.mismatch import relative_difference
        >>> round(relative_difference(torch.tensor([3e30, 5e30]), torch.tensor([3e30, 4e30])), 4)
        0.2
    """
    scale = weight.abs().amax().clamp_min(torch.finfo(weight.dtype).tiny)
    difference, norm = (torch.linalg.vector_norm(part / scale).item() for part in (near - weight, weight))
    return difference / max(norm, 1e-300)
