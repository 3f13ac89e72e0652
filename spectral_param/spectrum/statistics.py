"""Numbers that sum up the singular values of a weight."""

from __future__ import annotations

import torch
from torch import Tensor

STATISTICS = (
    "sigma_max",
    "sigma_min",
    "sigma_mean",
    "spectral_margin",
    "condition_number",
    "effective_rank",
)


def spectral_statistics(sigma: Tensor, center: float = 1.0) -> dict[str, float]:
    """Sums up singular values, by the names of ``STATISTICS``.

    - ``sigma_max``, ``sigma_min``, ``sigma_mean``: over all of them;
    - ``spectral_margin``: max|σ - center|;
    - ``condition_number``: σ max / σ min of a block, the largest over the blocks; ``inf`` for a singular one;
    - ``effective_rank``: exp of the entropy of σ / Σσ (Roy and Vetterli, 2007), from 1 to k; the mean over the blocks.

    All are NaN where a σ is.

    Args:
        sigma: singular values, non-negative: (k,), or (blocks, k) for a weight made of blocks.
        center: what the margin is measured from.

    Example:
        >>> import torch
        >>> from spectral_param.callbacks import spectral_statistics
        >>> numbers = spectral_statistics(torch.tensor([2.0, 1.0, 1.0]))
        >>> numbers["spectral_margin"], numbers["condition_number"]
        (1.0, 2.0)
        >>> round(numbers["effective_rank"], 3)
        2.828
    """
    blocks = sigma.reshape(-1, sigma.shape[-1]).double()
    greatest, least = blocks.amax(1), blocks.amin(1)
    share = blocks / blocks.sum(1, keepdim=True).clamp_min(torch.finfo(torch.double).tiny)
    values = (
        greatest.max(),
        least.min(),
        blocks.mean(),
        (blocks - center).abs().max(),
        torch.where(least == 0, torch.inf, greatest / least).max(),
        torch.special.entr(share).sum(1).exp().mean(),
    )
    return {name: value.item() for name, value in zip(STATISTICS, values, strict=True)}
