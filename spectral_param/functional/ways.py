"""Which way W is computed, or passed by: chosen once a forward, from sizes, the number of vectors and torch's state.

Note [Ways]
    - ``FROZEN``: no reflector is trained; U[:, :k] and V[:, :k] are kept, and W is one product of them.
    - ``FROZEN_REFLECTORS``: the same for vectors that pass W by where reflectors are few: ``x - (x Z) T`` a side.
    - ``LOW_RANK``: few reflectors; ``W = Σ - L Rᵀ`` (Note [Low rank]), or vectors by its thin factors.
    - ``NATIVE``: the same W by the compiled form.
    - ``REFLECTORS``: V, σ and U in compact WY form (Note [Compact WY]), for any number of reflectors.
    - ``PLAIN_LOW_RANK``, ``PLAIN_REFLECTORS``: the same in operations that compilers, tracers and transforms see
      through, where the others have handwritten backwards.

Note [Measurements]
    The rules count multiplications of a training step, weighed by what was measured on one thread of a two-core CPU in
    float32: thin products run at some 4/5 of the speed of square ones; L and R pay from four vectors a reflector on;
    W from L and R is faster than by reflectors up to k / 2 of them. The compiled form pays up to sides of 256, beyond
    which torch's products make up for their calls. A recurrence does without W on a CPU from 64 features on, if L and R
    have a quarter of its columns or fewer.
"""

from __future__ import annotations

from enum import Enum, auto

import torch
from torch import Tensor
from torch.nn import Parameter

from spectral_param.functional import native
from spectral_param.functional.factorization import ReflectorProduct, svd_product, svd_weight
from spectral_param.functional.frozen import FrozenProduct
from spectral_param.functional.low_rank import low_rank_factors, low_rank_weight
from spectral_param.functional.native import library
from spectral_param.functional.thin_product import thin_product
from spectral_param.sizes import Sizes
from spectral_param.torch_state.modes import under_dispatch_mode
from spectral_param.torch_state.private import with_zeros


class Way(Enum):
    """How W is computed or passed by: see Note [Ways]."""

    FROZEN = auto()
    FROZEN_REFLECTORS = auto()
    NATIVE = auto()
    LOW_RANK = auto()
    REFLECTORS = auto()
    PLAIN_LOW_RANK = auto()
    PLAIN_REFLECTORS = auto()

    @property
    def is_plain(self) -> bool:
        """Whether it is for transforms to see through."""
        return self in (Way.PLAIN_LOW_RANK, Way.PLAIN_REFLECTORS)


Kept = tuple[FrozenProduct, FrozenProduct]
"""What is kept of U and of V."""

Thin = tuple[Tensor, Tensor, Tensor]
"""σ, L and R."""


def way_to_build(u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, *, transformed: bool) -> Way:
    """The way to W.

    Args:
        u: U, p×p.
        sigma: (…, k).
        v: V, q×q.
        transformed: whether something other than eager autograd looks on.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> from spectral_param.functional.ways import way_to_build
        >>> u = ReflectorProduct(torch.randn(4, requires_grad=True), 4, 1)
        >>> way_to_build(u, torch.ones(4), u, transformed=False)
        <Way.LOW_RANK: 4>
    """
    sizes = Sizes(u.n, v.n, u.m, v.m)
    if transformed:
        return Way.PLAIN_LOW_RANK if is_low_rank(sizes) else Way.PLAIN_REFLECTORS
    if is_frozen(u) and is_frozen(v):
        return Way.FROZEN
    if not is_low_rank(sizes):
        return Way.REFLECTORS
    return Way.NATIVE if _is_native(u, sigma, v) else Way.LOW_RANK


def way_to_apply(u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, vectors: int, *, transformed: bool) -> Way:
    """The way to apply W to vectors without building it.

    Args:
        u: U, p×p.
        sigma: (…, k).
        v: V, q×q.
        vectors: how many meet W in one forward.
        transformed: whether something other than eager autograd looks on.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> from spectral_param.functional.ways import way_to_apply
        >>> u = ReflectorProduct(torch.randn(4, requires_grad=True), 4, 1)
        >>> way_to_apply(u, torch.ones(4), u, 100, transformed=False)
        <Way.LOW_RANK: 4>
        >>> way_to_apply(u, torch.ones(4), u, 1, transformed=True)
        <Way.PLAIN_REFLECTORS: 7>
    """
    sizes = Sizes(u.n, v.n, u.m, v.m)
    if transformed:
        return Way.PLAIN_LOW_RANK if is_thin(sizes, vectors) else Way.PLAIN_REFLECTORS
    if is_frozen(u) and is_frozen(v):
        return Way.FROZEN_REFLECTORS if _are_few(sizes) else Way.FROZEN
    return Way.LOW_RANK if is_thin(sizes, vectors) else Way.REFLECTORS


def spares_the_weight(way: Way, u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, vectors: int) -> bool:
    """Whether so many vectors have less work in a training step by :func:`way_to_apply` than with W built for them.

    Args:
        way: that of :func:`way_to_apply`, untransformed.
        u: U, p×p.
        sigma: (…, k).
        v: V, q×q.
        vectors: how many meet W in one forward.
    """
    sizes = Sizes(u.n, v.n, u.m, v.m)
    if way is Way.FROZEN_REFLECTORS or way is Way.FROZEN:
        return _are_few(sizes) or vectors < 2 * min(sizes.p, sizes.q)
    if is_low_rank(sizes) and _is_native(u, sigma, v):
        return False
    return is_less_work(sizes, vectors)


_CALLS = 5e6  # so many multiplications take the time of the calls by which one layer is done without W


def spares_equal_weights(sizes: Sizes, vectors: int) -> bool:
    """Whether layers of equal weights, made in one call, have less work with their thin factors than with W.

    Args:
        sizes: of each weight.
        vectors: how many meet one of them in one forward.

    Example:
        >>> from spectral_param.functional.ways import spares_equal_weights
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
        >>> from spectral_param.functional.ways import spares_the_sum
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
        >>> from spectral_param.functional.ways import spares_a_kept_weight
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
        >>> from spectral_param.functional.ways import spares_a_recurrence
        >>> from spectral_param.sizes import Sizes
        >>> spares_a_recurrence(Sizes(64, 64, 8, 8), "cpu"), spares_a_recurrence(Sizes(64, 64, 9, 9), "cpu")
        (True, False)
    """
    return device == "cpu" and sizes.k >= 64 and 8 * max(sizes.m1, sizes.m2) <= sizes.k


def build(way: Way, u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, kept: Kept | None = None) -> Tensor:
    """W, (…, p, q), by a way of :func:`way_to_build`.

    Args:
        way: how.
        u: U, p×p.
        sigma: (…, k).
        v: V, q×q.
        kept: what frozen factors keep.
    """
    if way is Way.FROZEN and kept is not None:
        k = sigma.shape[-1]
        return (kept[0].columns(u, k) * sigma.unsqueeze(-2)) @ kept[1].columns(v, k).mT
    if way in (Way.LOW_RANK, Way.NATIVE, Way.PLAIN_LOW_RANK):
        return low_rank_weight(u, sigma, v, plainly=way.is_plain, natively=way is Way.NATIVE)
    return svd_weight(u, sigma, v, plainly=way.is_plain)


def apply(
    way: Way,
    x: Tensor,
    u: ReflectorProduct,
    sigma: Tensor,
    v: ReflectorProduct,
    kept: Kept,
    bias: Tensor | None = None,
) -> Tensor:
    """``x Wᵀ + b`` for rows x, (…, N, p), by a way of :func:`way_to_apply`.

    Args:
        way: how.
        x: (…, N, q) in the dtype of ``sigma``.
        u: U, p×p.
        sigma: (…, k).
        v: V, q×q.
        kept: what frozen factors keep.
        bias: b, (p,), or ``None``.
    """
    if way in (Way.LOW_RANK, Way.PLAIN_LOW_RANK):
        left, right = low_rank_factors(u, sigma, v, plainly=way.is_plain)
        return thin_product(x, sigma, left, right, bias, plainly=way.is_plain)
    if way is Way.FROZEN:
        k = sigma.shape[-1]
        y = ((x @ kept[1].columns(v, k)) * sigma.unsqueeze(-2)) @ kept[0].columns(u, k).mT
    elif way is Way.FROZEN_REFLECTORS:
        scaled = kept[1].rotate(x, v)[..., : sigma.shape[-1]] * sigma.unsqueeze(-2)
        y = kept[0].rotate(with_zeros(scaled, u.n - sigma.shape[-1], -1), u, transpose=True)
    else:
        y = svd_product(x, u, sigma, v, plainly=way.is_plain)
    return y if bias is None else y + bias


# ------------------------------------------------------------------------------------------------------------ the rules


def is_frozen(u: ReflectorProduct) -> bool:
    """Whether the reflectors are a plain tensor that nothing trains, and neither compiler nor mode looks on.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> from spectral_param.functional.ways import is_frozen
        >>> is_frozen(ReflectorProduct(torch.zeros(3), 2, 2))
        True
    """
    packed = u.packed
    if packed.requires_grad or type(packed) not in (Tensor, Parameter):
        return False
    return not (torch.compiler.is_compiling() or packed.is_inference() or under_dispatch_mode())


def is_low_rank(sizes: Sizes) -> bool:
    """Whether there are reflectors on both sides, at most half as many as σ.

    Example:
        >>> from spectral_param.functional.ways import is_low_rank
        >>> from spectral_param.sizes import Sizes
        >>> is_low_rank(Sizes(8, 8, 4, 4)), is_low_rank(Sizes(8, 8, 5, 4)), is_low_rank(Sizes(8, 8, 0, 4))
        (True, False, False)
    """
    return min(sizes.m1, sizes.m2) > 0 and _are_few(sizes)


def is_thin(sizes: Sizes, vectors: int) -> bool:
    """Whether so many vectors are worth the making of L and R, to be applied to them in place of the reflectors.

    Example:
        >>> from spectral_param.functional.ways import is_thin
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
        >>> from spectral_param.functional.ways import is_less_work
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


def _are_few(sizes: Sizes) -> bool:
    return 2 * max(sizes.m1, sizes.m2) <= min(sizes.p, sizes.q)


def _is_native(u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct) -> bool:
    return bool(library.loaded) and native.fits_weight((u.n, v.n), u.packed, sigma, v.packed)
