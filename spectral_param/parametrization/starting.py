"""What a weight has to be to start from, and reflectors and σ that are drawn in place of it, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param.functional import fitting
from spectral_param.sigma import SigmaMap
from spectral_param.sizes import Sizes
from spectral_param.torch_state.modes import has_numbers


def drawn(chunks: int, sizes: Sizes, sigma_map: SigmaMap) -> fitting.Factors:
    """Draws U and V of each block at random around the map's start.

    Args:
        chunks: how many blocks.
        sizes: of a block.
        sigma_map: whose start is σ.

    Returns:
        Reflectors of U, (chunks, p, m₁), σ, (chunks, k), and reflectors of V, (chunks, q, m₂), float64.
    """
    start = torch.as_tensor(sigma_map.start, dtype=torch.float64, device="cpu").expand(chunks, sizes.k)
    return _stack([fitting.draw(*sizes, sigma=level) for level in start])


def has_real_numbers(weight: Tensor) -> bool:
    """Whether a weight has a real floating dtype that is computed with, of two bytes or more.

    Example:
        >>> import torch
        >>> from spectral_param.parametrization.starting import has_real_numbers
        >>> [has_real_numbers(torch.empty(2, dtype=t)) for t in (torch.bfloat16, torch.float8_e4m3fn, torch.int8)]
        [True, False, False]
    """
    return weight.dtype.is_floating_point and weight.dtype.itemsize > 1


def check_weight(weight: Tensor, shape: tuple[int, ...]) -> None:
    """Raises ``ValueError`` for another shape, NaN or infinity, and ``TypeError`` for a dtype that is not floating."""
    if tuple(weight.shape) != shape:
        raise ValueError(f"weight: expected shape {shape}, got {tuple(weight.shape)}.")
    if not has_real_numbers(weight):
        raise TypeError(f"weight: expected a real floating dtype, got {weight.dtype}.")
    if has_numbers(weight) and not torch.isfinite(weight).all():
        raise ValueError("weight: expected finite values, got NaN or infinity.")


def _stack(blocks: Sequence[fitting.Factors]) -> fitting.Factors:
    u, sigma, v = (torch.stack(parts) for parts in zip(*blocks, strict=True))
    return u, sigma, v
