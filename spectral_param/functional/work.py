"""What is less work, counted in multiplications of a training step, from sizes and the number of vectors.

Note [Measurements]
    The rules count multiplications of a training step, weighed by what was measured on one thread of a two-core CPU in
    float32: thin products run at some 4/5 of the speed of square ones; L and R pay from four vectors a reflector on;
    W from L and R is faster than by reflectors up to k / 2 of them. The compiled form pays up to sides of 256, beyond
    which torch's products make up for their calls. A recurrence does without W on a CPU from 64 features on, if L and R
    have a quarter of its columns or fewer.
"""

from __future__ import annotations

from spectral_param.sizes import Sizes


def are_few(sizes: Sizes) -> bool:
    """Whether there are at most half as many reflectors on a side as σ.

    Example:
        >>> from spectral_param.functional.work import are_few
        >>> from spectral_param.sizes import Sizes
        >>> are_few(Sizes(8, 8, 4, 0)), are_few(Sizes(8, 8, 5, 0))
        (True, False)
    """
    return 2 * max(sizes.m1, sizes.m2) <= min(sizes.p, sizes.q)


def is_low_rank(sizes: Sizes) -> bool:
    """Whether there are reflectors on both sides, at most half as many as σ.

    Example:
        >>> from spectral_param.functional.work import is_low_rank
        >>> from spectral_param.sizes import Sizes
        >>> is_low_rank(Sizes(8, 8, 4, 4)), is_low_rank(Sizes(8, 8, 5, 4)), is_low_rank(Sizes(8, 8, 0, 4))
        (True, False, False)
    """
    return min(sizes.m1, sizes.m2) > 0 and are_few(sizes)


def is_thin(sizes: Sizes, vectors: int) -> bool:
    """Whether so many vectors are worth the making of L and R, to be applied to them in place of the reflectors.

    Example:
        >>> from spectral_param.functional.work import is_thin
        >>> from spectral_param.sizes import Sizes
        >>> is_thin(Sizes(512, 512, 16, 16), 128), is_thin(Sizes(512, 512, 128, 128), 128)
        (True, False)
    """
    return is_low_rank(sizes) and vectors >= 4 * max(sizes.m1, sizes.m2)


def is_less_work(sizes: Sizes, vectors: int, besides: float = 0) -> bool:
    """Whether one training step is fewer operations with V, σ and U applied to the vectors than with W built for them.

    Counted in multiplications, for N vectors, p×q blocks, m reflectors on each side and the area
    ``A = m₁ p + m₂ q - (m₁² + m₂²) / 2`` of the reflectors:

    - to apply takes ``6 N m (p + q)`` with L and R, whose thin products run at some 4/5 of the speed of others, or
      ``7 N A`` with the reflectors;
    - to build and apply takes ``3 N p q``, and ``6 p q m`` for W from L and R, or ``6 k A`` from the reflectors.

    Args:
        sizes: of a block.
        vectors: N, how many vectors meet W in one forward.
        besides: multiplications that it takes to apply them besides.

    Example:
        >>> from spectral_param.functional.work import is_less_work
        >>> from spectral_param.sizes import Sizes
        >>> is_less_work(Sizes(512, 512, 16, 16), vectors=10_000)
        True
        >>> is_less_work(Sizes(512, 512, 512, 512), 128), is_less_work(Sizes(512, 512, 512, 512), 2048)
        (True, False)
    """
    p, q, m1, m2 = sizes
    m, area = max(m1, m2), m1 * p + m2 * q - (m1 * m1 + m2 * m2) / 2
    applied = 7.5 * vectors * m * (p + q) if is_thin(sizes, vectors) else 7 * vectors * area
    built = 6 * p * q * m if is_low_rank(sizes) else 6 * min(p, q) * area
    return applied + besides < built + 3 * vectors * p * q


_CALLS = 5e6  # so many multiplications take the time of the calls by which one layer is done without W


def spares_equal_weights(sizes: Sizes, vectors: int) -> bool:
    """Whether layers of equal weights, made in one call, have less work with their thin factors than with W.

    Args:
        sizes: of each weight.
        vectors: how many meet one of them in one forward.

    Example:
        >>> from spectral_param.functional.work import spares_equal_weights
        >>> from spectral_param.sizes import Sizes
        >>> spares_equal_weights(Sizes(192, 192, 8, 8), 520), spares_equal_weights(Sizes(128, 128, 16, 16), 128)
        (True, False)
    """
    return is_thin(sizes, vectors) and is_less_work(sizes, vectors, besides=_CALLS)


def spares_the_sum(sizes: Sizes, rank: int, vectors: int) -> bool:
    """Whether so many vectors have less work with ``W₀ x + L (Rᵀ x)`` than with the sum ``W₀ + L Rᵀ`` built for them.

    Counted in multiplications of a training step: ``3 N s (p + q)`` beside W₀, or ``3 s p q`` for W and ``N p q`` for
    its gradient, L and R having ``s = r + m₁ + m₂`` columns.

    Args:
        sizes: of a block.
        rank: r, how many σ are trained.
        vectors: N, how many meet W in one forward.

    Example:
        >>> from spectral_param.functional.work import spares_the_sum
        >>> from spectral_param.sizes import Sizes
        >>> spares_the_sum(Sizes(512, 512, 8, 8), 8, 10_000), spares_the_sum(Sizes(64, 64, 8, 8), 64, 10_000)
        (True, False)
    """
    p, q, m1, m2 = sizes
    s = rank + m1 + m2
    return 3 * vectors * s * (p + q) < 3 * s * p * q + vectors * p * q


SURELY_SPARE_NOT = 40_000
"""So many numbers of input never do: to make L and R takes the time of so many multiplications a row and column."""


def spares_a_kept_weight(sizes: Sizes, vectors: int) -> bool:
    """Whether so many vectors have less work without W, and without gradients, than with a W that is there already.

    Args:
        sizes: of W.
        vectors: how many meet W in one forward.

    Example:
        >>> from spectral_param.functional.work import spares_a_kept_weight
        >>> from spectral_param.sizes import Sizes
        >>> [spares_a_kept_weight(Sizes(1024, 1024, 16, 16), vectors) for vectors in (1, 64, 1024)]
        [False, False, True]
    """
    p, q, m1, m2 = sizes
    return is_thin(sizes, vectors) and (2.5 * vectors * max(m1, m2) + SURELY_SPARE_NOT) * (p + q) < vectors * p * q


def spares_a_recurrence(sizes: Sizes, device: str) -> bool:
    """Whether the steps of a recurrence have less work with ``σ h - L (Rᵀ h)`` than with W; see Note [Measurements].

    Args:
        sizes: of W.
        device: the type of device that runs it.

    Example:
        >>> from spectral_param.functional.work import spares_a_recurrence
        >>> from spectral_param.sizes import Sizes
        >>> spares_a_recurrence(Sizes(64, 64, 8, 8), "cpu"), spares_a_recurrence(Sizes(64, 64, 9, 9), "cpu")
        (True, False)
    """
    return device == "cpu" and sizes.k >= 64 and 8 * max(sizes.m1, sizes.m2) <= sizes.k
