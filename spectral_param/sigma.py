"""σ maps: how the trained numbers of a weight become its σ, and which σ they can become."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_INSIDE = 0.02  # of a range: how far from its edge a σ from outside starts, so that its gradient is alive


class SigmaMap(nn.Module):
    """What every σ map has: ``forward`` from raw numbers to σ, ``inverse`` back, and a range.

    Attributes:
        low: the least σ the map reaches (may be ``-inf``).
        high: the greatest.
        start: σ where no weight says otherwise, as with ``init="orthogonal"``.
        trained: whether there are raw numbers to train.
    """

    low: float = -math.inf
    high: float = math.inf
    start: float = 1.0
    trained: bool = True

    def forward(self, raw: Tensor) -> Tensor:
        """Raw numbers → σ, elementwise."""
        raise TypeError(f"{type(self).__name__}: a σ map has to define forward.")

    def inverse(self, sigma: Tensor) -> Tensor:
        """σ → raw numbers, elementwise; a σ outside the range is moved just inside."""
        raise TypeError(f"{type(self).__name__}: a σ map has to define inverse.")


class Unconstrained(SigmaMap):
    """σ is trained as it is; it may take any value, of either sign.

    Example:
        >>> import torch
        >>> from spectral_param import Unconstrained
        >>> Unconstrained()(torch.tensor([-2.0, 0.5]))
        tensor([-2.0000,  0.5000])
    """

    def forward(self, raw: Tensor) -> Tensor:
        """σ = raw."""
        return raw

    def inverse(self, sigma: Tensor) -> Tensor:
        """Raw = σ."""
        return sigma


class Band(SigmaMap):
    """Holds σ within ``radius`` of ``center``: σ = 2 r (sigmoid(raw) - ½) + center (Eq. 4 of the paper).

    The raw numbers start where the weight's σ are; a σ at or beyond an edge starts 2 % of the band's width inside it.

    Args:
        radius: r > 0; the paper takes r ≪ 1, its released code 0.01.
        center: the middle of the band, σ* in the paper.

    Raises:
        TypeError: if an argument is no number.
        ValueError: if ``radius`` is not positive, or either is not finite.

    Example:
        >>> import torch
        >>> from spectral_param import Band
        >>> band = Band(0.1)
        >>> band(torch.tensor([-100.0, 0.0, 100.0]))
        tensor([0.9000, 1.0000, 1.1000])
        >>> band.low, band.high
        (0.9, 1.1)
    """

    def __init__(self, radius: float, center: float = 1.0) -> None:
        radius, center = _finite("radius", radius), _finite("center", center)
        if radius <= 0:
            raise ValueError(f"radius: expected a positive number, got {radius}.")
        super().__init__()
        self.radius = radius
        self.center = center

    @property
    def low(self) -> float:  # type: ignore[override]  # follows radius and center
        """The lower edge, center - radius."""
        return self.center - self.radius

    @property
    def high(self) -> float:  # type: ignore[override]
        """The upper edge, center + radius."""
        return self.center + self.radius

    @property
    def start(self) -> float:  # type: ignore[override]
        """The middle of the band."""
        return self.center

    def forward(self, raw: Tensor) -> Tensor:
        """σ = 2 r (sigmoid(raw) - ½) + center."""
        return 2 * self.radius * (torch.sigmoid(raw) - 0.5) + self.center

    def inverse(self, sigma: Tensor) -> Tensor:
        """Raw = logit((σ - low) / (2 r))."""
        share = (sigma - self.center) / (2 * self.radius) + 0.5
        share = torch.where(share <= 0, _INSIDE, torch.where(share >= 1, 1 - _INSIDE, share))
        return torch.logit(share)

    def extra_repr(self) -> str:
        """Radius and center, for printing."""
        return f"radius={self.radius}, center={self.center}"


class Fixed(SigmaMap):
    """Every σ is ``value`` and none is trained: with value 1 the weight is orthogonal, as in oRNN.

    Args:
        value: σ, finite.

    Raises:
        TypeError: if ``value`` is no number.
        ValueError: if it is not finite.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Fixed, register_svd_parametrization, spectral_norm
        >>> layer = register_svd_parametrization(nn.Linear(4, 4), sigma=Fixed(), init="orthogonal")
        >>> spectral_norm(layer).item()
        1.0
    """

    trained = False

    def __init__(self, value: float = 1.0) -> None:
        value = _finite("value", value)
        super().__init__()
        self.value = value

    @property
    def low(self) -> float:  # type: ignore[override]
        """The value."""
        return self.value

    @property
    def high(self) -> float:  # type: ignore[override]
        """The value."""
        return self.value

    @property
    def start(self) -> float:  # type: ignore[override]
        """The value."""
        return self.value

    def forward(self, raw: Tensor) -> Tensor:
        """σ = value, in the shape of ``raw``."""
        return torch.full_like(raw, self.value)

    def inverse(self, sigma: Tensor) -> Tensor:
        """Nothing to train: ``σ`` as it came, which ``forward`` ignores."""
        return sigma

    def extra_repr(self) -> str:
        """The value, for printing."""
        return f"value={self.value}"


def _finite(name: str, number: float) -> float:
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name}: expected a number, got {type(number).__name__}.")
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {number}.")
    return float(number)
