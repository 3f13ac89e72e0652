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

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectral_param.functional import native
from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.reflectors import lengths, pack_both, unpack, unpack_both
from spectral_param.sizes import Sizes
from spectral_param.torch_state.higher_order import gradients_by_running_again, must_run_again
from spectral_param.torch_state.precision import in_full_precision


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
    return _LowRank.apply(u.packed, sigma, v.packed, sizes, _NATIVE if natively else _WHOLE)


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
    if plainly:
        return _plain_factors(u.packed, sigma, v.packed, sizes)
    left, right = _LowRank.apply(u.packed, sigma, v.packed, sizes, _FACTORS)
    return left, right


# --------------------------------------------------------------------------------------- the pieces of Note [Low rank]


class _Pieces(NamedTuple):
    z: Tensor
    scale: Tensor
    gram: Tensor
    cross: Tensor
    left: Tensor
    right: Tensor


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
    return _Pieces(z, scale, gram, cross, torch.cat([z_u, left_v], -1), torch.cat([right_u, z_v], -1))


def _solve(triangle: Tensor, b: Tensor, *, upper: bool = False) -> Tensor:
    """``b S⁻ᵀ`` from Sᵀ (lower), or ``b S⁻¹`` from S (upper), S unit triangular; the rest is never read."""
    return torch.linalg.solve_triangular(triangle, b, upper=upper, left=False, unitriangular=True)


def _added(c: Tensor, a: Tensor, b: Tensor, *, alpha: float = 1, beta: float = 1) -> Tensor:
    """``beta c + alpha a b``, batched or not, in one operation where torch has one."""
    if c.dim() == 2:
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)
    return torch.baddbmm(c, a, b, alpha=alpha, beta=beta) if c.dim() == 3 else beta * c + alpha * (a @ b)


def _column(sigma: Tensor, sizes: Sizes) -> Tensor:
    """σ as (…, max(p, q), 1), with zeros after the k that there are."""
    n = max(sizes.p, sizes.q)
    k = sigma.shape[-1]
    return (pad(sigma, (0, n - k)) if n > k else sigma).unsqueeze(-1)


def _rows(matrix: Tensor, n: int) -> Tensor:
    """The matrix with zeros below it, up to n rows."""
    missing = n - matrix.shape[-2]
    return pad(matrix, (0, 0, 0, missing)) if missing else matrix


def _plain_factors(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The same in operations that every transform of torch can see through."""
    p, q, m1, m2 = sizes
    n, m = max(p, q), max(m1, m2)
    y_u, y_v = (
        pad(unpack(packed, rows, columns), (0, m - columns, 0, n - rows))
        for packed, rows, columns in ((u, p, m1), (v, q, m2))
    )
    pieces = _pieces(torch.stack([y_u, y_v], -3), _column(sigma, sizes))
    return pieces.left[..., :p, :], pieces.right[..., :q, :]


def _plain_weight(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sizes) -> Tensor:
    left, right = _plain_factors(u, sigma, v, sizes)
    diagonal = pad(torch.diag_embed(sigma), (0, sizes.q - sizes.k, 0, sizes.p - sizes.k))
    return diagonal - left @ right.mT


_FACTORS, _WHOLE, _NATIVE = range(3)  # what is made of the reflectors: L and R, W, or W by the compiled form


class _LowRank(torch.autograd.Function):
    """W, or L and R, with the backward of Note [Low rank, backward]."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, sigma: Tensor, v: Tensor, sizes: Sizes, makes: int
    ) -> Tensor | tuple[Tensor, Tensor]:
        ctx.sizes, ctx.makes = sizes, makes
        if makes == _NATIVE:
            w, kept = native.weight(u, sigma, v, sizes)
            ctx.save_for_backward(u, sigma, v, kept)
            return w
        z, scale, gram, cross, left, right = _pieces(unpack_both(u, v, *sizes), _column(sigma, sizes))
        if sizes.p != sizes.q:
            left, right = left[..., : sizes.p, :], right[..., : sizes.q, :]
        ctx.save_for_backward(u, sigma, v, z, scale, gram, cross, left, right)
        if makes == _FACTORS:
            return left, right
        w = -left @ right.mT
        w.diagonal(dim1=-2, dim2=-1).add_(sigma)
        return w

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, sigma, v, *kept = ctx.saved_tensors
        sizes, whole = ctx.sizes, ctx.makes != _FACTORS
        if must_run_again(*grads):  # the kept pieces have no graph
            again = functools.partial(_plain_weight if whole else _plain_factors, sizes=sizes)
            return (*gradients_by_running_again(again, (u, sigma, v), ctx.needs_input_grad[:3], grads), None, None)
        if ctx.makes == _NATIVE:
            return (*native.weight_gradients(grads[0], u, sigma, v, kept[0], sizes), None, None)

        # n = max(p, q), m = max(m₁, m₂); U and V stand side by side in (…, 2, n, m)
        z, scale, gram, cross, left, right = kept
        # z: (…, 2, n, m)
        # scale: (…, 2, 1, m), √2 / ‖u‖
        # gram: (…, 2, m, m), ZᵀZ
        # cross: (…, m, m), C
        # left: (…, p, 2 m), L
        # right: (…, q, 2 m), R
        n, m = z.shape[-2:]
        if whole:
            minus_d_left, minus_d_right = grads[0] @ right, grads[0].mT @ left
        else:
            minus_d_left, minus_d_right = -grads[0], -grads[1]
        d_left_u, d_left_v = _rows(minus_d_left, n).split(m, -1)  # A, B: (…, n, m)
        d_right_u, d_right_v = _rows(minus_d_right, n).split(m, -1)  # A', B': (…, n, m)
        z_u, z_v = z.unbind(-3)
        gram_u, gram_v = gram.unbind(-3)
        big_p, big_q = _rows(right, n)[..., :m], _rows(left, n)[..., m:]  # P, Q: (…, n, m)
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
        d_sigma = (x * z).sum((-3, -1))[..., : sizes.k]  # (…, k)
        d_sigma = grads[0].diagonal(dim1=-2, dim2=-1) - d_sigma if whole else -d_sigma
        return d_u, d_sigma, d_v, None, None
