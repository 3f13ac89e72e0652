"""W as its σ on the diagonal plus a product of two thin matrices, for weights with few reflectors.

Note [Low rank]
    With ``U = I - Z_u S_u⁻¹ Z_uᵀ`` and V alike (Note [Compact WY] in ``householder.py``), and Σ the p×q matrix with σ
    on its diagonal,

        W = Σ - L Rᵀ,  L = [Z_u, Q],  R = [P, Z_v],
        P = Σᵀ Z_u S_u⁻ᵀ,  Q = (Σ Z_v - Z_u C) S_v⁻ᵀ,  C = Pᵀ Z_v.

    L and R have 2 m columns, m = max(m₁, m₂), so that nothing p×q is touched but in ``L Rᵀ``, and not even there where
    W is applied to vectors as ``σ x - L (Rᵀ x)``. Both sides stand in one stack, filled up by zeros where one is
    smaller: half as many operations, which is what small weights wait for.

Note [Low rank, backward]
    From ``(A, B) = -dL`` and ``(A', B') = -dR``, cut into their two halves: ``E = B S_v⁻¹``, ``D = Z_uᵀ E``,
    ``F = (A' - Z_v Dᵀ) S_u⁻¹``, and, the sides stacked,

        X = (F, E),  dσ = -rowsum(X_u ∘ Z_u + X_v ∘ Z_v),
        dZ = Z sym(Xᵀ (P, Q)) + (E Cᵀ - A, P D - B') - σ X,

    where ``sym(K) = striu(K) + striu(K)ᵀ``. All solves are from the right: on rows in the order in which they lie in
    memory, two to four times as fast as from the left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectral_param.functional import native
from spectral_param.functional.by_hand import ByHand, operator
from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.reflectors import lengths, pack_both, unpack, unpack_both
from spectral_param.sizes import Sizes


def low_rank_weight(
    u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, *, plainly: bool = False, natively: bool = False
) -> Tensor:
    """Builds W from fewer reflectors than σ, in time ``O(pq m)``.

    Args:
        u: U, from 1 to k - 1 reflectors.
        sigma: (…, k), of any sign.
        v: V, from 1 to k - 1 reflectors.
        plainly: in operations that every transform of torch can see through.
        natively: by the compiled form, which has to be loaded and to fit.

    Returns:
        (…, p, q), differentiable any number of times.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> from spectral_param.functional.low_rank import low_rank_weight
        >>> u, v = (ReflectorProduct(torch.randn(4), 4, 1) for _ in range(2))
        >>> torch.linalg.svdvals(low_rank_weight(u, torch.tensor([4.0, 3.0, 2.0, 1.0]), v))
        tensor([4.0000, 3.0000, 2.0000, 1.0000])
    """
    sizes = Sizes(u.n, v.n, u.m, v.m)
    if plainly:
        return _plain_weight(u.packed, sigma, v.packed, sizes)
    run = _weight_operator if torch.compiler.is_compiling() else _LowRankWeight.apply
    return run(u.packed, sigma, v.packed, sizes, natively)


def low_rank_factors(
    u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, *, plainly: bool = False
) -> tuple[Tensor, Tensor]:
    """The thin factors of ``W = Σ - L Rᵀ``, see Note [Low rank].

    Args:
        u: U, from 1 to k - 1 reflectors.
        sigma: (…, k), of any sign.
        v: V, from 1 to k - 1 reflectors.
        plainly: in operations that every transform of torch can see through.

    Returns:
        L, (…, p, 2 m), and R, (…, q, 2 m), m = max(m₁, m₂), differentiable any number of times.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> from spectral_param.functional.low_rank import low_rank_factors, low_rank_weight
        >>> u, v = ReflectorProduct(torch.randn(5), 5, 1), ReflectorProduct(torch.randn(3), 3, 1)
        >>> left, right = low_rank_factors(u, torch.ones(3), v)
        >>> torch.allclose(low_rank_weight(u, torch.ones(3), v), torch.eye(5, 3) - left @ right.mT, atol=1e-5)
        True
    """
    sizes = Sizes(u.n, v.n, u.m, v.m)
    by_hand = _factors_operator if torch.compiler.is_compiling() else _ThinFactors.apply
    left, right = (_plain_factors if plainly else by_hand)(u.packed, sigma, v.packed, sizes)
    return (left, right) if u.n == v.n else (left[..., : u.n, :], right[..., : v.n, :])


# --------------------------------------------------------------------------------------- the pieces of Note [Low rank]


class _Pieces(NamedTuple):
    left: Tensor
    right: Tensor
    z: Tensor
    scale: Tensor
    gram: Tensor
    cross: Tensor


def _pieces(y: Tensor, sigma: Tensor) -> _Pieces:
    """From the reflectors of both sides, (…, 2, n, m), and σ as a column (…, n, 1)."""
    length = torch.threshold(lengths(y), torch.finfo(y.dtype).tiny, math.inf)
    scale = (math.sqrt(2.0) / length).to(y.dtype)
    z = y * scale
    gram = z.mT @ z
    z_u, z_v = z.unbind(-3)
    gram_u, gram_v = gram.unbind(-3)
    right_u = _solve(gram_u.mT, sigma * z_u)
    cross = right_u.mT @ z_v
    left_v = _solve(gram_v.mT, _added(sigma * z_v, z_u, cross, alpha=-1))
    return _Pieces(torch.cat([z_u, left_v], -1), torch.cat([right_u, z_v], -1), z, scale, gram, cross)


def _solve(triangle: Tensor, b: Tensor, *, upper: bool = False) -> Tensor:
    """``b S⁻ᵀ`` from Sᵀ (lower), or ``b S⁻¹`` from S (upper), S unit triangular; the rest is never read."""
    return torch.linalg.solve_triangular(triangle, b, upper=upper, left=False, unitriangular=True)


def _added(c: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1, beta: float = 1) -> Tensor:
    """``beta c + alpha a b``, batched or not, in one operation where torch has one."""
    if c.dim() == 2:
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)
    if c.dim() > 3:
        return torch.baddbmm(*(t.flatten(0, -3) for t in (c, a, b)), alpha=alpha, beta=beta).view(c.shape)
    return torch.baddbmm(c, a, b, alpha=alpha, beta=beta)


def _column(sigma: Tensor, sizes: Sequence[int]) -> Tensor:
    """σ as (…, max(p, q), 1), with zeros after the k that there are."""
    n = max(sizes[0], sizes[1])  # a slice of a NamedTuple breaks older compilers
    k = sigma.shape[-1]
    return (pad(sigma, (0, n - k)) if n > k else sigma).unsqueeze(-1)


def _rows(matrix: Tensor, n: int) -> Tensor:
    """The matrix with zeros below it, up to n rows."""
    missing = n - matrix.shape[-2]
    return pad(matrix, (0, 0, 0, missing)) if missing else matrix


def _plain_factors(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """L and R of max(p, q) rows, in operations that every transform of torch can see through."""
    p, q, m1, m2 = sizes
    n, m = max(p, q), max(m1, m2)
    y_u, y_v = (
        pad(unpack(packed, rows, columns), (0, m - columns, 0, n - rows))
        for packed, rows, columns in ((u, p, m1), (v, q, m2))
    )
    pieces = _pieces(torch.stack([y_u, y_v], -3), _column(sigma, sizes))
    return pieces.left, pieces.right


def _plain_weight(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int]) -> Tensor:
    left, right = _plain_factors(u, sigma, v, sizes)
    p, q, k = sizes[0], sizes[1], sigma.shape[-1]
    return pad(torch.diag_embed(sigma), (0, q - k, 0, p - k)) - left[..., :p, :] @ right[..., :q, :].mT


class _ThinFactors(ByHand):
    """L and R of max(p, q) rows."""

    results, kept_from = 2, 0

    @staticmethod
    def forward(ctx: Any, u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        kept = _ThinFactors.compute(u, sigma, v, sizes)
        ctx.save_for_backward(u, sigma, v, *kept)
        ctx.rule, ctx.numbers = _ThinFactors, (sizes,)
        return kept[0], kept[1]

    @staticmethod
    def compute(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list(_pieces(unpack_both(u, v, *sizes), _column(sigma, sizes)))

    @staticmethod
    def gradients(
        grads: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
        sizes: Sequence[int],
    ) -> tuple[Tensor, Tensor, Tensor]:
        pairs = zip(grads, kept[:2], strict=True)
        minus_d_left, minus_d_right = (torch.zeros_like(like) if grad is None else -grad for grad, like in pairs)
        d_u, minus_d_sigma, d_v = _through_pieces(minus_d_left, minus_d_right, tensors[1], _Pieces(*kept), sizes)
        return d_u, -minus_d_sigma, d_v

    plainly = staticmethod(_plain_factors)


class _LowRankWeight(ByHand):
    """W, by the compiled form or not."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int], natively: bool) -> Tensor:
        w, *kept = _LowRankWeight.compute(u, sigma, v, sizes, natively)
        ctx.save_for_backward(u, sigma, v, *kept)
        ctx.rule, ctx.numbers = _LowRankWeight, (sizes, natively)
        return w

    @staticmethod
    def compute(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int], natively: bool) -> list[Tensor]:
        if natively:
            return list(native.weight(u, sigma, v, sizes))
        pieces = _pieces(unpack_both(u, v, *sizes), _column(sigma, sizes))
        w = -pieces.left[..., : sizes[0], :] @ pieces.right[..., : sizes[1], :].mT
        w.diagonal(dim1=-2, dim2=-1).add_(sigma)
        return [w, *pieces]

    @staticmethod
    def gradients(
        grads: Sequence[Tensor],
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
        sizes: Sequence[int],
        natively: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        [grad], (u, sigma, v) = grads, tensors
        if natively:
            return native.weight_gradients(grad, u, sigma, v, kept[0], sizes)
        pieces, n = _Pieces(*kept), max(sizes[:2])
        minus_d_left = _rows(grad @ pieces.right[..., : sizes[1], :], n)
        minus_d_right = _rows(grad.mT @ pieces.left[..., : sizes[0], :], n)
        d_u, minus_d_sigma, d_v = _through_pieces(minus_d_left, minus_d_right, sigma, pieces, sizes)
        return d_u, grad.diagonal(dim1=-2, dim2=-1) - minus_d_sigma, d_v

    @staticmethod
    def plainly(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int], natively: bool) -> Tensor:
        return _plain_weight(u, sigma, v, sizes)


def _through_pieces(
    minus_d_left: Tensor, minus_d_right: Tensor, sigma: Tensor, pieces: _Pieces, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by packed U, σ, negated, and packed V from those by L and R, negated: Note [Low rank, backward]."""
    # n = max(p, q), m = max(m₁, m₂); U and V stand side by side in (…, 2, n, m)
    left, right, z, scale, gram, cross = pieces
    # z: (…, 2, n, m)
    # scale: (…, 2, 1, m), √2 / ‖u‖
    # gram: (…, 2, m, m), ZᵀZ
    # cross: (…, m, m), C
    # left: (…, n, 2 m), L
    # right: (…, n, 2 m), R
    m = z.shape[-1]
    d_left_u, d_left_v = minus_d_left.split(m, -1)  # A, B: (…, n, m)
    d_right_u, d_right_v = minus_d_right.split(m, -1)  # A', B': (…, n, m)
    z_u, z_v = z.unbind(-3)
    gram_u, gram_v = gram.unbind(-3)
    big_p, big_q = right[..., :m], left[..., m:]  # P, Q: (…, n, m)
    e = _solve(gram_v, d_left_v, upper=True)  # (…, n, m)
    d_cross = z_u.mT @ e  # D: (…, m, m)
    f = _solve(gram_u, _added(d_right_u, z_v, d_cross.mT, alpha=-1), upper=True)  # (…, n, m)
    x = torch.stack([f, e], -3)  # (…, 2, n, m)
    upper = (x.mT @ torch.stack([big_p, big_q], -3)).triu(1)  # (…, 2, m, m)
    dz = torch.stack(
        [_added(d_left_u, e, cross.mT, beta=-1), _added(d_right_v, big_p, d_cross, beta=-1)], -3
    )  # (…, 2, n, m)
    dz = _added(dz, z, upper + upper.mT).addcmul_(_column(sigma, sizes).unsqueeze(-3), x, value=-1)
    dz.addcmul_(z, (dz * z).sum(-2, keepdim=True), value=-0.5).mul_(scale)
    d_u, d_v = pack_both(dz, *sizes)
    return d_u, (x * z).sum(-1).sum(-2)[..., : min(sizes[:2])], d_v


_TENSORS = "Tensor u, Tensor sigma, Tensor v"
_factors_operator = operator("thin_factors", _ThinFactors, _TENSORS, "int[] sizes")
_weight_operator = operator("low_rank_weight", _LowRankWeight, _TENSORS, "int[] sizes, bool natively")
