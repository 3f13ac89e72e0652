"""Numbers that sum up the singular values of a weight."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.spectrum.dense.tail import tail_of

STATISTICS = (
    "sigma_max",
    "sigma_min",
    "sigma_mean",
    "spectral_margin",
    "condition_number",
    "effective_rank",
)
SHAPE_STATISTICS = ("stable_rank", "tail_exponent", "tail_error")


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


def shape_statistics(sigma: Tensor) -> dict[str, float]:
    """Says how singular values are spread, by the names of ``SHAPE_STATISTICS``; each is the mean over the blocks.

    - ``stable_rank``: ‖W‖_F² / σ max², from 1 to k; NaN for a zero weight;
    - ``tail_exponent``: α of the power law in the tail of σ², see :func:`~spectral_param.spectrum.dense.tail.tail_of`;
    - ``tail_error``: the Kolmogorov-Smirnov distance of that fit. Far from 0 there is no power law, and α says nothing.

    Args:
        sigma: singular values, non-negative: (k,), or (blocks, k) for a weight made of blocks.

    Example:
        >>> import torch
        >>> from spectral_param.callbacks import shape_statistics
        >>> shape_statistics(torch.tensor([2.0, 1.0, 1.0]))["stable_rank"]
        1.5
    """
    blocks = sigma.reshape(-1, sigma.shape[-1]).double()
    shares = blocks / blocks.amax(1, keepdim=True)  # NaN where all are 0
    tails = torch.tensor([tail_of(block)[:2] for block in blocks], dtype=torch.double).mean(0)
    values = (shares.square().sum(1).mean(), *tails)
    return {name: value.item() for name, value in zip(SHAPE_STATISTICS, values, strict=True)}
