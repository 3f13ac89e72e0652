"""The sizes of a block in SVD form, and how many numbers its reflectors are."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """A p×q block with m₁ reflectors of U and m₂ of V.

    Example:
        >>> from spectral_param.sizes import Sizes
        >>> Sizes(128, 64, 16, 8).k
        64
    """

    p: int
    q: int
    m1: int
    m2: int

    @property
    def k(self) -> int:
        """How many σ."""
        return min(self.p, self.q)


def packed_size(n: int, m: int) -> int:
    """How many numbers a lower trapezoid n×m, m ≤ n, holds: what the paper counts for m reflectors.

    Example:
        >>> from spectral_param.sizes import packed_size
        >>> packed_size(32, 16)
        392
    """
    return n * m - m * (m - 1) // 2
