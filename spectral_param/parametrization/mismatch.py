"""Telling the user where a weight cannot be met."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from spectral_param.functional.factorization import ReflectorProduct, svd_weight
from spectral_param.functional.fitting import Factors
from spectral_param.functional.reflectors import pack
from spectral_param.sigma import SigmaMap
from spectral_param.sizes import Sizes

_APPROXIMATE = 1e-3  # relative error of a fit from which the user is told


def warn_of_differences(blocks: Tensor, factors: Factors, sizes: Sizes, sigma_map: SigmaMap) -> None:
    """Warns if too few reflectors, or the range of the σ map, keep W from what it should be.

    Args:
        blocks: what was to be met, (chunks, p, q).
        factors: what was found for it: dense reflectors of U, σ, and dense reflectors of V.
        sizes: of a block.
        sigma_map: the σ map.
    """
    u, sigma, v = factors
    if min(sizes.m1, sizes.m2) < sizes.k:
        left, right = ReflectorProduct(pack(u), sizes.p, sizes.m1), ReflectorProduct(pack(v), sizes.q, sizes.m2)
        near = svd_weight(left, sigma, right)
        error = _relative_difference(near, blocks.to(near))
        if error > _APPROXIMATE:
            warnings.warn(
                f"reflectors=({sizes.m1}, {sizes.m2}) of {sizes.k} turn U and V too little to meet the weight: "
                f"it changes by {error:.1%} in the Frobenius norm.",
                stacklevel=4,
            )
    moved = (sigma_map(sigma_map.inverse(sigma)) - sigma).abs()
    count = int((moved > 1e-6 * sigma.abs().amax().clamp_min(1.0)).sum())
    if count:
        warnings.warn(
            f"{sigma_map}: {count} of {sigma.numel()} σ of the weight lie outside its range "
            f"and start inside it, moved by up to {moved.amax():.3g}.",
            stacklevel=4,
        )


def _relative_difference(near: Tensor, weight: Tensor) -> float:
    scale = weight.abs().amax().clamp_min(torch.finfo(weight.dtype).tiny)
    difference = torch.linalg.vector_norm((near - weight) / scale)
    return (difference / torch.linalg.vector_norm(weight / scale).clamp_min(1e-300)).item()
