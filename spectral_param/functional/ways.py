"""Which way is less work."""

from __future__ import annotations

from spectral_param.sizes import Sizes


def is_low_rank(sizes: Sizes) -> bool:
    """Whether reflectors on both sides are so few that ``Σ - L Rᵀ`` is less work than two products of reflectors.

    Example:
        >>> from spectral_param.functional.ways import is_low_rank
        >>> from spectral_param.sizes import Sizes
        >>> is_low_rank(Sizes(128, 128, 16, 16)), is_low_rank(Sizes(128, 128, 128, 128))
        (True, False)
    """
    return min(sizes.m1, sizes.m2) > 0 and 2 * max(sizes.m1, sizes.m2) <= sizes.k


def is_thin(sizes: Sizes, vectors: int) -> bool:
    """Whether so many vectors are worth the making of L and R, to be applied to them in place of the reflectors.

    Example:
        >>> from spectral_param.functional.ways import is_thin
        >>> from spectral_param.sizes import Sizes
        >>> is_thin(Sizes(512, 512, 16, 16), 128), is_thin(Sizes(512, 512, 128, 128), 128)
        (True, False)
    """
    return is_low_rank(sizes) and vectors >= 4 * max(sizes.m1, sizes.m2)


def is_less_work(sizes: Sizes, vectors: int) -> bool:
    """Whether one training step is fewer operations with V, σ and U applied to the vectors than with W built for them.

    Counted in multiplications, for N vectors, p×q blocks, m reflectors on each side and the area
    ``A = m₁ p + m₂ q - (m₁² + m₂²) / 2`` of the reflectors:

    - to apply takes ``6 N m (p + q)`` with L and R, whose thin products run at some 4/5 of the speed of others, or
      ``7 N A`` with the reflectors;
    - to build and apply takes ``3 N p q``, and ``6 p q m`` for W from L and R, or ``6 k A`` from the reflectors.

    Args:
        sizes: of a block.
        vectors: N, how many vectors meet W in one forward.

    Example:
        >>> from spectral_param.registration.injection.matrix_free import is_less_work
        >>> from spectral_param.sizes import Sizes
        >>> is_less_work(Sizes(512, 512, 16, 16), vectors=10_000)
        True
        >>> is_less_work(Sizes(512, 512, 512, 512), 128), is_less_work(Sizes(512, 512, 512, 512), 2048)
        (True, False)
    """
    p, q, m1, m2 = sizes
    m, area = max(m1, m2), m1 * p + m2 * q - (m1 * m1 + m2 * m2) / 2
    applied = 7.5 * vectors * m * (p + q) if is_thin(sizes, vectors) else 7 * vectors * area
    built = 6 * p * q * m if is_low_rank(sizes) else 6 * sizes.k * area
    return applied < built + 3 * vectors * p * q
