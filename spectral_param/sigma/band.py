"""σ near a centre: Eq. 4 of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.sigma.level import Level, checked, describe, everywhere, like, register_levels
from spectral_param.sigma.sigmoid import SigmoidMap


class Band(SigmoidMap):
    """Holds σ within ``radius`` of ``center``: σ = 2 r (sigmoid(raw) - ½) + center, the paper's Equation 4.

    - Range: [center - radius, center + radius]; the edges are met by rounding alone.
    - Inverse: raw = logit((σ - center) / (2 r) + ½).
    - σ outside, or within 1e-5 of the width from an edge: starts 2 % of the width inside.
    - Start: ``center``.

    Args:
        radius: r > 0; the paper takes r ≪ 1, its released code 0.01. A number, or a tensor (k,) or (chunks, k) that
            gives each σ its own.
        center: the middle of the band, σ* in the paper; a number or a tensor in the same way.

    Raises:
        TypeError: if an argument is neither a number nor a floating tensor.
        ValueError: if ``radius`` is not positive, or either is not finite; at registration if a tensor has not a value
            for each σ.

    Example:
        Around 1, and around the singular values that a weight has:

        >>> import torch
        >>> from spectral_param import Band, register_svd_parametrization, singular_values
        >>> band = Band(0.1)
        >>> band(torch.tensor([-100.0, 0.0, 100.0]))
        tensor([0.9000, 1.0000, 1.1000])
        >>> band.low, band.high
        (0.9, 1.1)
        >>> layer = torch.nn.Linear(8, 4)
        >>> around = Band(0.05, center=singular_values(layer))
        >>> before = layer.weight.detach().clone()
        >>> torch.allclose(register_svd_parametrization(layer, sigma=around).weight, before, atol=1e-6)
        True
    """

    radius: Level
    center: Level

    def __init__(self, radius: Level, center: Level = 1.0) -> None:
        radius, center = checked("radius", radius), checked("center", center)
        if not everywhere(radius > 0):
            raise ValueError(f"radius: expected a positive number, got {describe(radius)}.")
        super().__init__()
        register_levels(self, radius=radius, center=center)

    @property
    def low(self) -> Level:  # type: ignore[override]  # follows radius and center
        """The lower edge, center - radius."""
        return self.center - self.radius

    @property
    def high(self) -> Level:  # type: ignore[override]
        """The upper edge, center + radius."""
        return self.center + self.radius

    @property
    def start(self) -> Level:  # type: ignore[override]
        """The middle of the band."""
        return self.center

    def forward(self, raw: Tensor) -> Tensor:
        """σ = 2 r (sigmoid(raw) - ½) + center, where 2 sigmoid(raw) - 1 = tanh(raw / 2), which does not cancel at 0."""
        radius, center = like(self.radius, raw), like(self.center, raw)
        return self._within(radius * torch.tanh(raw / 2) + center)

    def extra_repr(self) -> str:
        """Radius and center, for printing."""
        return f"radius={describe(self.radius)}, center={describe(self.center)}"
