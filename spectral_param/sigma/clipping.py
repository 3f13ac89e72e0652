"""Moving singular values into an interval by way of the raw numbers of a σ map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param.sigma import SigmaMap
from spectral_param.sigma.level import describe, everywhere, like, number
from spectral_param.torch_state.precision import wide


def checked_range(low: Any, high: Any) -> tuple[float, float]:
    """Makes floats of the least and the greatest |σ| that are asked for.

    Raises:
        TypeError: if one is no number.
        ValueError: if not 0 ≤ low ≤ high.

    Example:
        >>> from spectral_param.sigma.clipping import checked_range
        >>> checked_range(0, 1)
        (0.0, 1.0)
    """
    low, high = number("min", low), number("max", high)
    if not 0 <= low <= high:
        raise ValueError(f"min, max: expected 0 <= min <= max, got {low:g} and {high:g}.")
    return low, high


def check_clip(sigma_map: SigmaMap, low: float, high: float) -> None:
    """Raises ``ValueError`` if not 0 ≤ low ≤ high, or if the map reaches no σ with low ≤ |σ| ≤ high.

    Example:
        >>> from spectral_param import Band
        >>> from spectral_param.sigma.clipping import check_clip
        >>> check_clip(Band(0.1), 0.5, 0.8)
        Traceback (most recent call last):
        ValueError: min, max: Band(radius=0.1, center=1.0) reaches σ from 0.9 to 1.1, none of them in [0.5, 0.8].
    """
    low, high = checked_range(low, high)
    as_positive, as_negative = _reaches(sigma_map, low, high)
    if not everywhere(as_positive | as_negative):
        reach = f"{describe(sigma_map.low)} to {describe(sigma_map.high)}"
        some = "" if isinstance(sigma_map.low, float) else " for some σ"
        raise ValueError(f"min, max: {sigma_map} reaches σ from {reach}, none of them in [{low}, {high}]{some}.")


def clipped(sigma_map: SigmaMap, raw: Tensor, low: float, high: float) -> Tensor:
    """Raw numbers whose |σ| lie in [low, high]; those that did so before keep their bits.

    σ keeps its sign unless the map reaches [low, high] with the other alone.

    Example:
        >>> import torch
        >>> from spectral_param import Unconstrained
        >>> from spectral_param.sigma.clipping import clipped
        >>> clipped(Unconstrained(), torch.tensor([3.0, -3.0, 0.5]), 0.0, 2.0)
        tensor([ 2.0000, -2.0000,  0.5000])
    """
    sigma = sigma_map(wide(raw))
    size = sigma.abs().clamp(low, high)
    signed = size.copysign(sigma)
    as_positive, as_negative = (like(side, sigma) for side in _reaches(sigma_map, low, high))
    keeps_sign = torch.where(sigma.signbit(), as_negative, as_positive)
    signed = torch.where(keeps_sign.bool(), signed, -signed)
    moved = sigma_map.inverse(signed).to(raw.dtype)
    if raw.dtype.itemsize < 4:
        moved = _rounded_inwards(sigma_map, moved, signed, low, high)
    return torch.where(size == sigma.abs(), raw, moved)


def side_of(sigma_map: SigmaMap, raw: Tensor) -> Tensor:
    """1 where σ is positive, -1 where it is negative; what :func:`returned` has to know from before a step.

    Example:
        >>> import torch
        >>> from spectral_param import Unconstrained
        >>> from spectral_param.sigma.clipping import side_of
        >>> side_of(Unconstrained(), torch.tensor([0.5, -2.0]))
        tensor([ 1., -1.])
    """
    sigma = sigma_map(wide(raw.detach()))
    return torch.ones_like(sigma).copysign(sigma)


def returned(sigma_map: SigmaMap, raw: Tensor, side: Tensor, low: float) -> Tensor:
    """Raw numbers of which those whose σ has come to the other side of 0 are back at |σ| = low, on their own side.

    Example:
        >>> import torch
        >>> from spectral_param import Unconstrained
        >>> from spectral_param.sigma.clipping import returned
        >>> returned(Unconstrained(), torch.tensor([-0.3, -0.3, 0.3]), torch.tensor([1.0, -1.0, 1.0]), 0.9)
        tensor([ 0.9000, -0.3000,  0.3000])
    """
    sigma = sigma_map(wide(raw))
    has_crossed = (sigma.signbit() ^ side.signbit()) & ~sigma.isnan()
    return torch.where(has_crossed, sigma_map.inverse(low * side).to(raw.dtype), raw)


def _rounded_inwards(sigma_map: SigmaMap, raw: Tensor, sigma: Tensor, low: float, high: float) -> Tensor:
    """One or two raw numbers further where rounding to half precision took |σ| out of [low, high]."""
    size = sigma_map(raw.float()).abs()
    too_small = size < low
    rises = (too_small == (sigma > 0)).to(raw.dtype)
    step = (2 * rises - 1) * raw.abs() * torch.finfo(raw.dtype).eps
    return torch.where(too_small | (size > high), raw + step, raw)


def _reaches(sigma_map: SigmaMap, low: float, high: float) -> tuple[bool | Tensor, bool | Tensor]:
    """Whether σ can have a size in [low, high] as a positive number, and as a negative one; for each σ."""
    return sigma_map.reaches(low, high), sigma_map.reaches(-high, -low)
