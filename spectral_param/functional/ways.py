"""Which way W is computed, or passed by: chosen once a forward, from sizes, the number of vectors and torch's state.

Note [Ways]
    - ``FROZEN``: no reflector is trained; U[:, :k] and V[:, :k] are kept, and W is one product of them.
    - ``FROZEN_REFLECTORS``: the same for vectors that pass W by where reflectors are few: ``x - (x Z) T`` a side.
    - ``LOW_RANK``: few reflectors; ``W = Σ - L Rᵀ`` (Note [Low rank]), or vectors by its thin factors.
    - ``NATIVE``: the same W by the compiled form.
    - ``REFLECTORS``: V, σ and U in compact WY form (Note [Compact WY]), for any number of reflectors.
    - ``PLAIN_LOW_RANK``, ``PLAIN_REFLECTORS``: the same in operations that compilers, tracers and transforms see
      through, where the others have handwritten backwards.
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
from spectral_param.functional.work import are_few, is_less_work, is_low_rank, is_thin
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
        return Way.FROZEN_REFLECTORS if are_few(sizes) else Way.FROZEN
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
        return are_few(sizes) or vectors < 2 * min(sizes.p, sizes.q)
    if is_low_rank(sizes) and _is_native(u, sigma, v):
        return False
    return is_less_work(sizes, vectors)


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


def _is_native(u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct) -> bool:
    return bool(library.loaded) and native.fits_weight((u.n, v.n), u.packed, sigma, v.packed)
