"""σ that is not trained."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.sigma.level import checked
from spectral_param.sigma.map import SigmaMap


class Fixed(SigmaMap):
    """Every σ is ``value`` and none is trained: with value 1 the weight is orthogonal, as in oRNN.

    - Range: ``value``.
    - Inverse: none; there are no raw numbers.
    - σ outside: becomes ``value``.
    - Start: ``value``.

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
        level = checked("value", value)
        if isinstance(level, Tensor):
            raise TypeError(f"value: expected a number, got a tensor of shape {tuple(level.shape)}.")
        super().__init__()
        self.value = level

    @property
    def low(self) -> float:  # type: ignore[override]  # follows value
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

    def reaches(self, low: float, high: float) -> bool:
        """Whether ``value`` lies between two numbers."""
        return low <= self.value <= high

    def extra_repr(self) -> str:
        """The value, for printing."""
        return f"value={self.value}"
