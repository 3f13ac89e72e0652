"""σ above zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from spectral_param.sigma.map import SigmaMap

_LEAST = 0.02  # where a σ from outside starts: its gradient with respect to raw is 0.02 as well


class Positive(SigmaMap):
    """Keeps σ above zero: σ = softplus(raw) = log(1 + e^raw). The weight keeps full rank, and det W its sign.

    - Range: (0, ∞); what underflows is the least normal number of the dtype, so that 1/σ and log σ are finite.
    - Inverse: raw = σ + log(1 - e^-σ).
    - σ outside, zero or below: starts at 0.02.
    - Start: 1.

    Example:
        >>> import torch
        >>> from spectral_param import Positive
        >>> positive = Positive()
        >>> positive(torch.tensor([-200.0, 0.0, 200.0]))
        tensor([1.1755e-38, 6.9315e-01, 2.0000e+02])
        >>> positive(positive.inverse(torch.tensor([-1.0, 1e-6, 3.0])))
        tensor([2.0000e-02, 1.0000e-06, 3.0000e+00])
    """

    low = 0.0
    high = math.inf

    def forward(self, raw: Tensor) -> Tensor:
        """σ = log(1 + e^raw)."""
        # beyond 40 the exponential is below the rounding of float64
        return softplus(raw, threshold=40.0).clamp_min(torch.finfo(raw.dtype).tiny)

    def inverse(self, sigma: Tensor) -> Tensor:
        """``raw = σ + log(1 - e^-σ)``."""
        sigma = torch.where(sigma <= 0, _LEAST, sigma)  # NaN stays
        return sigma + torch.log(-torch.expm1(-sigma))
