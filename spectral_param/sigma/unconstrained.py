"""σ as it is."""

from __future__ import annotations

import math

from torch import Tensor

from spectral_param.sigma.map import SigmaMap


class Unconstrained(SigmaMap):
    """σ is trained as it is: σ = raw.

    - Range: every number, of either sign.
    - Inverse: raw = σ.
    - σ outside: there is none.
    - Start: 1.

    Example:
        >>> import torch
        >>> from spectral_param import Unconstrained
        >>> Unconstrained()(torch.tensor([-2.0, 0.5]))
        tensor([-2.0000,  0.5000])
    """

    low = -math.inf
    high = math.inf

    def forward(self, raw: Tensor) -> Tensor:
        """σ = raw."""
        return raw

    def inverse(self, sigma: Tensor) -> Tensor:
        """``raw = σ``."""
        return sigma
