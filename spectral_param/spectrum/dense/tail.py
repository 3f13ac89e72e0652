"""How heavy the tail of a spectrum is: the exponent of a power law, as WeightWatcher fits it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_AT_ONCE = 256  # cut-offs that are tried together


class Tail(NamedTuple):
    """A power law λ^-α fitted to the eigenvalues λ = σ² from ``start`` on.

    Attributes:
        exponent: α; NaN where nothing can be fitted.
        error: the Kolmogorov-Smirnov distance of the fit, from 0 to 1.
        start: the least λ that is in the tail.
        size: how many are.
    """

    exponent: float
    error: float
    start: float
    size: int


@torch.no_grad()
def tail_of(sigma: Tensor) -> Tail:
    """Fits a power law to the tail of the eigenvalues of WᵀW.

    After Clauset, Shalizi, Newman (2009): for each cut-off among the λ the exponent of greatest likelihood,
    α = 1 + n / Σ log(λ/start), and of all cut-offs the one with the least Kolmogorov-Smirnov distance. That is the α of
    Martin and Mahoney's WeightWatcher.

    Args:
        sigma: singular values of one matrix, (k,), in any order. Zeros are left out.

    Returns:
        The tail; of NaN where fewer than two λ differ, or one is not finite.

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.tail import tail_of
        >>> quantiles = (torch.arange(2000.0) + 0.5) / 2000
        >>> tail = tail_of((1 - quantiles) ** -0.25)  # λ = σ² with density 2 λ^-3
        >>> round(tail.exponent, 1), tail.error < 0.01
        (3.0, True)
    """
    eigenvalues = sigma.detach().double().flatten().square().sort().values
    eigenvalues = eigenvalues[eigenvalues != 0]
    if len(eigenvalues) < 2 or not eigenvalues.isfinite().all() or eigenvalues[0] == eigenvalues[-1]:
        return Tail(torch.nan, torch.nan, torch.nan, 0)
    logs = eigenvalues.log()
    size = len(logs)
    starts = torch.arange(size, device=logs.device)
    starts = starts[(logs < logs[-1]) & (logs != torch.cat((logs.new_tensor([-torch.inf]), logs[:-1])))]
    counts = size - starts
    sums = logs.flip(0).cumsum(0).flip(0)[starts] - counts * logs[starts]
    exponents = 1 + counts / sums
    errors = torch.cat([_distances(logs, *some) for some in _in_parts(starts, exponents)])
    best = int(errors.argmin())
    start = int(starts[best])
    return Tail(exponents[best].item(), errors[best].item(), eigenvalues[start].item(), size - start)


def _in_parts(starts: Tensor, exponents: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(starts.split(_AT_ONCE), exponents.split(_AT_ONCE), strict=True))


def _distances(logs: Tensor, starts: Tensor, exponents: Tensor) -> Tensor:
    """max|F - S| over the tail for each cut-off; S counts those that are smaller, as Clauset's own code has it."""
    beyond = torch.arange(len(logs), device=logs.device) - starts.unsqueeze(1)
    fitted = 1 - ((logs - logs[starts].unsqueeze(1)) * (1 - exponents).unsqueeze(1)).exp()
    counted = beyond / (len(logs) - starts).unsqueeze(1)
    return torch.where(beyond >= 0, (fitted - counted).abs(), 0).amax(1)
