"""What the maps between two edges share."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.sigma.level import like
from spectral_param.sigma.map import SigmaMap

_EDGE = 1e-5  # of the width: nearer to an edge a σ is taken to be at it, its gradient lost in rounding
_INSIDE = 0.02  # of the width: where such a σ starts, so that its gradient is alive
_MIDDLE = 0.25  # of the width: how near to the middle raw is found from the distance to it, which is exact there


class SigmoidMap(SigmaMap):
    """σ between ``low`` and ``high``, by a sigmoid; both are numbers, or both tensors. It starts in the middle."""

    def inverse(self, sigma: Tensor) -> Tensor:
        """``raw = logit((σ - low) / (high - low))``; σ at or beyond an edge is moved 2 % of the width inside."""
        if self._are_lost:
            self.check_levels()
        low, high = like(self.low, sigma), like(self.high, sigma)
        share = (sigma - low) / (high - low)
        share = torch.where(share < _EDGE, _INSIDE, torch.where(share > 1 - _EDGE, 1 - _INSIDE, share))
        return self._near_middle(sigma, torch.logit(share))

    def recover(self, sigma: Tensor) -> Tensor:
        """The same for σ that the map has given, at an edge too: only those beyond are moved inside."""
        low, high = like(self.low, sigma), like(self.high, sigma)
        below, above = sigma - low, high - sigma
        eps, width = torch.finfo(sigma.dtype).eps, high - low
        least = eps / 4 * width  # from an edge, for what is there but for rounding
        raw = torch.where(below > 0, below, least).log() - torch.where(above > 0, above, least).log()
        is_beyond = torch.minimum(below, above) < -eps * (sigma.abs() + width)
        return torch.where(is_beyond, self.inverse(sigma), self._near_middle(sigma, raw))

    def _near_middle(self, sigma: Tensor, raw: Tensor) -> Tensor:
        """Raw numbers, from the distance to the middle where that is small."""
        low, high, middle = (like(level, sigma) for level in (self.low, self.high, self.start))
        offset = (sigma - middle) / (high - low)
        near_middle = 2 * torch.atanh(2 * offset.clamp(-_MIDDLE, _MIDDLE))
        return torch.where(offset.abs() < _MIDDLE, near_middle, raw)

    def reaches(self, low: float, high: float) -> bool | Tensor:
        """Whether some σ between two numbers can be met, an edge itself never; for each σ, where each has its own."""
        margin = _EDGE * (self.high - self.low)
        return (self.low + margin < high) & (self.high - margin > low)

    def _within(self, sigma: Tensor) -> Tensor:
        """Takes off what rounding put beyond an edge."""
        if self._are_lost:
            self.check_levels()
        low, high = like(self.low, sigma), like(self.high, sigma)
        if isinstance(low, Tensor) or isinstance(high, Tensor):  # which clamp takes for no shards before torch 2.10
            return torch.where(sigma < low, low, torch.where(sigma > high, high, sigma))
        return sigma.clamp(low, high)
