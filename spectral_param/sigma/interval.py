"""σ between two levels."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.sigma.level import Level, checked, describe, everywhere, like, register_levels
from spectral_param.sigma.sigmoid import SigmoidMap


class Interval(SigmoidMap):
    """Keeps σ between two levels: σ = low + (high - low) sigmoid(raw).

    - Range: [low, high]; the edges are met by rounding alone.
    - Inverse: raw = logit((σ - low) / (high - low)).
    - σ outside, or within 1e-5 of the width from an edge: starts 2 % of the width inside.
    - Start: the middle.

    Args:
        low: the lower edge, of any sign: a number, or a tensor (k,) or (chunks, k) that gives each σ its own.
        high: the upper edge, in the same way.

    Raises:
        TypeError: if an argument is neither a number nor a floating tensor.
        ValueError: if one is not finite, ``low`` is not below ``high``, or their shapes do not fit; at registration if
            a tensor has not a value for each σ.

    Example:
        >>> import torch
        >>> from spectral_param import Interval
        >>> Interval(-1.0, 3.0)(torch.tensor([-100.0, 0.0, 100.0]))
        tensor([-1.,  1.,  3.])
        >>> Interval(0.0, torch.tensor([1.0, 4.0]))
        Interval(low=[2 values, 0 to 0], high=[2 values, 1 to 4])
    """

    def __init__(self, low: Level, high: Level) -> None:
        low, high = checked("low", low), checked("high", high)
        if isinstance(low, Tensor) or isinstance(high, Tensor):
            low, high = _broadcast(low, high)
        if not everywhere(low < high):
            raise ValueError(f"low, high: expected low below high, got {describe(low)} and {describe(high)}.")
        super().__init__()
        register_levels(self, low=low, high=high)

    @property
    def start(self) -> Level:  # type: ignore[override]  # follows the edges
        """The middle."""
        return (self.low + self.high) / 2

    def forward(self, raw: Tensor) -> Tensor:
        """σ = low + (high - low) sigmoid(raw)."""
        low, high, middle = (like(level, raw) for level in (self.low, self.high, self.start))
        width = high - low
        sigma = low + width * torch.sigmoid(raw)
        if isinstance(self.low, Tensor) or low < 0 < high:  # else nothing cancels
            near_middle = middle + width * (torch.tanh(raw / 2) / 2)
            sigma = torch.where(raw.abs() < 1, near_middle, sigma)
        return self._within(sigma)

    def extra_repr(self) -> str:
        """The edges, for printing."""
        return f"low={describe(self.low)}, high={describe(self.high)}"


class Bounded(Interval):
    """Keeps σ in [0, max]: a Lipschitz bound on the layer. ``Interval(0, max)``, which says the rest.

    Args:
        max: the greatest singular value: a number above zero, or a tensor (k,) or (chunks, k).

    Raises:
        TypeError: if ``max`` is neither a number nor a floating tensor.
        ValueError: if it is not finite or not above zero.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Bounded, register_svd_parametrization, spectral_norm
        >>> layer = register_svd_parametrization(nn.Linear(8, 4), sigma=Bounded(1.0), init="orthogonal")
        >>> spectral_norm(layer).item()
        0.5
    """

    def __init__(self, max: Level) -> None:
        max = checked("max", max)
        if not everywhere(max > 0):
            raise ValueError(f"max: expected a positive number, got {describe(max)}.")
        super().__init__(0.0, max)

    def extra_repr(self) -> str:
        """The upper edge, for printing."""
        return f"max={describe(self.high)}"


def _broadcast(low: Level, high: Level) -> tuple[Tensor, Tensor]:
    """Two tensors of one shape."""
    device = next(level.device for level in (low, high) if isinstance(level, Tensor))
    pair = [torch.as_tensor(level, device=device) for level in (low, high)]
    try:
        first, second = torch.broadcast_tensors(*pair)
    except RuntimeError:
        shapes = " and ".join(str(tuple(level.shape)) for level in pair)
        raise ValueError(f"low, high: expected shapes that fit each other, got {shapes}.") from None
    return first.clone(), second.clone()
