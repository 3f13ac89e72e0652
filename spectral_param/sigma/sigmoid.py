"""What the maps between two edges share."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.sigma.level import like
from spectral_param.sigma.map import SigmaMap

_EDGE = 1e-5  # of the width: nearer to an edge a σ is taken to be at it, its gradient lost in rounding
_INSIDE = 0.02  # of the width: where such a σ starts, so that its gradient is alive


class SigmoidMap(SigmaMap):
    """σ between ``low`` and ``high``, by a sigmoid; both are numbers, or both tensors."""

    def inverse(self, sigma: Tensor) -> Tensor:
        """Raw = logit((σ - low) / (high - low)); σ at or beyond an edge is moved 2 % of the width inside."""
        low, high = like(self.low, sigma), like(self.high, sigma)
        share = (sigma - low) / (high - low)
        share = torch.where(share < _EDGE, _INSIDE, torch.where(share > 1 - _EDGE, 1 - _INSIDE, share))
        return torch.logit(share)

    def reaches(self, low: float, high: float) -> bool | Tensor:
        """Whether σ between two numbers are there that are not at an edge; for each σ, where each has its own range."""
        margin = _EDGE * (self.high - self.low)
        return (self.low + margin < high) & (self.high - margin > low)

    def _within(self, sigma: Tensor) -> Tensor:
        """Takes off what rounding put beyond an edge."""
        low, high = like(self.low, sigma), like(self.high, sigma)
        return sigma.clamp(low, high)  # type: ignore[arg-type]  # both are numbers or both tensors
