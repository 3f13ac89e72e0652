"""Circles that hold an image with its padding, so that what a convolution does to it is part of what it does to them.

Note [Zeros on a circle]
~~~~~~~~~~~~~~~~~~~~~~~~
Along a side of n pixels with lo and hi zeros around it, window j has the pixels j s + d t - lo, t < k, from -lo to
n - 1 + hi. On a circle of N ≥ n + max(lo, hi) pixels, a multiple of s with N ≥ m s, let the image lie at 0 to n - 1 and
zeros at the others: -1 to -lo and n to n - 1 + hi are among those. So T = R C E, with C the circular convolution, E the
isometry that lays the image on the circle, R the choice of the m windows, which are different ones: T is a part of the
matrix C, and by Cauchy's interlacing σ_i(T) ≤ σ_i(C) for every i. σ_1(C) is at most the supremum over all frequencies,
which is that of an image without end.

Other paddings are an operator P before a convolution that pads nothing: σ_i(T P) ≤ σ_i(T) ‖P‖. P copies pixels, PᵀP is
diagonal with the number of copies of each, so ‖P‖ = √(the most copies), the product of that of all sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from spectral_param.functional.convolution.geometry import Geometry, Side


def wraps_around(geometry: Geometry, sides: Sequence[Side]) -> bool:
    """Whether the image is itself a circle: circular padding to the same size, and strides that divide it."""
    each = zip(sides, geometry.stride, geometry.padding, geometry.reach, strict=True)
    return (
        geometry.padding_mode == "circular"
        and not geometry.transposed
        and all(side.n % s == 0 and sum(padding) == reach for side, s, padding, reach in each)
    )


def circle(geometry: Geometry, sides: Sequence[Side]) -> tuple[tuple[int, ...], float]:
    """How many frequencies a circle has along each side, and by how much the padding stretches an image; see the note.

    Example:
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.functional.convolution.padding import circle
        >>> geometry = geometry_of(nn.Conv1d(1, 1, 5, padding=2))
        >>> circle(geometry, geometry.sides((32,)))
        ((34,), 1.0)
    """
    if wraps_around(geometry, sides):
        return tuple(side.m for side in sides), 1.0
    zeros = geometry.padding_mode == "zeros"
    counts, copies = [], 1
    for side, stride, (low, high) in zip(sides, geometry.stride, geometry.padding, strict=True):
        around = max(low, high) if zeros else low + high
        counts.append(max(math.ceil((side.n + around) / stride), side.m))
        copies *= 1 if zeros else most_copies(geometry.padding_mode, side.n, low, high)
    return tuple(counts), math.sqrt(copies)


def stretch(geometry: Geometry) -> float:
    """By how much padding can stretch an image of any size; 1 for zeros, and for circles of every size.

    Example:
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.functional.convolution.padding import stretch
        >>> [round(stretch(geometry_of(nn.Conv1d(1, 1, 3, padding=1, padding_mode=mode))) ** 2)
        ...     for mode in ("zeros", "circular", "reflect")]
        [1, 1, 3]
    """
    is_same = geometry.padding_mode == "circular" and set(geometry.stride) == {1}
    if geometry.padding_mode == "zeros" or (is_same and tuple(map(sum, geometry.padding)) == geometry.reach):
        return 1.0
    return math.sqrt(math.prod(most_copies_of_any(geometry.padding_mode, low, high) for low, high in geometry.padding))


def most_copies(mode: str, n: int, low: int, high: int) -> int:
    """How often the most frequent of n pixels of a side stands in the padded side.

    Example:
        >>> from spectral_param.functional.convolution.padding import most_copies
        >>> most_copies("reflect", 8, 2, 2), most_copies("replicate", 8, 2, 2)
        (2, 3)
    """
    if low == high == 0:
        return 1
    padded = pad(torch.arange(n, dtype=torch.float64).reshape(1, 1, n), (low, high), mode=mode)
    return int(padded.long().flatten().bincount().max())


def most_copies_of_any(mode: str, low: int, high: int) -> int:
    """The same of sides of any length, of which the shortest have most.

    Example:
        >>> from spectral_param.functional.convolution.padding import most_copies_of_any
        >>> most_copies_of_any("reflect", 2, 2), most_copies_of_any("replicate", 2, 2)
        (3, 5)
    """
    least = {"circular": max(low, high, 1), "reflect": max(low, high) + 1, "replicate": 1}[mode]
    return max(most_copies(mode, n, low, high) for n in range(least, least + low + high + 2))
