"""A matrix that stays as it is, turned by reflectors on both sides, with some of its singular values moved.

Note [Turned]
    For W₀ = U₀ diag(σ₀) V₀ᵀ, orthogonal ``Q_u = I - Z_u T_u`` and ``Q_v = I - Z_v T_v`` of m₁ and m₂ reflectors of full
    length (Note [Compact WY] in ``householder.py``, T = S⁻¹ Zᵀ), and δ the change of r singular values,

        W = Q_u M Q_vᵀ,  M = W₀ + U_r diag(δ) V_rᵀ,

    has the singular values σ₀ + δ and the vectors Q_u U₀ and Q_v V₀. It differs from W₀ by a product of two thin
    matrices, of s = r + m₁ + m₂ columns:

        W = W₀ + L Rᵀ,  L = [U_r diag(δ), -Z_u, Z_u C T_vᵀ - B],  R = [V_r, Cᵀ, Z_v],  C = T_u M,  B = M T_vᵀ,

    so that vectors cost ``(p + q) s`` each beside W₀'s own product, and W one product beside W₀. Equal pairs of
    reflectors cancel: there W is W₀ to rounding, and yet each of a pair has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional.reflectors import scaled


class TurnedFactor(NamedTuple):
    """Singular vectors turned by reflectors, Q X: orthonormal columns, all n of them where X is square.

    Attributes:
        reflectors: of Q, (…, n, m), full length.
        basis: X, (…, n, k), orthonormal columns.

    Example:
        >>> import torch
        >>> from spectral_param.functional.turned import TurnedFactor
        >>> u = TurnedFactor(torch.randn(4, 2), torch.eye(4, 3))
        >>> torch.allclose(u.apply(u.columns(3), transpose=True), torch.eye(3), atol=1e-6)
        True
    """

    reflectors: Tensor
    basis: Tensor

    @property
    def n(self) -> int:
        """Rows."""
        return self.basis.shape[-2]

    def is_identity(self) -> bool:
        """Whether it turns nothing: never said of this one."""
        return False

    def columns(self, count: int, *, plainly: bool = True) -> Tensor:
        """The first columns, (…, n, count)."""
        return self._turn(self.basis[..., :count])

    def apply(self, x: Tensor, *, transpose: bool = False, plainly: bool = True) -> Tensor:
        """``Q X x`` for x (…, n, b) with nothing below row k, or ``(Q X)ᵀ x``, (…, k, b)."""
        if not transpose:
            return self._turn(self.basis @ x[..., : self.basis.shape[-1], :])
        z, t = turn(self.reflectors)
        return self.basis.mT @ (x - t.mT @ (z.mT @ x))

    def _turn(self, x: Tensor) -> Tensor:
        z, t = turn(self.reflectors)
        return x - z @ (t @ x)


def turn(reflectors: Tensor) -> tuple[Tensor, Tensor]:
    """Z, (…, n, m), and T, (…, m, n), of ``Q = I - Z T`` for reflectors of full length, in any number.

    Example:
        >>> import torch
        >>> from spectral_param.functional.turned import turn
        >>> z, t = turn(torch.ones(2, 1))
        >>> torch.eye(2) - z @ t
        tensor([[ 0., -1.],
                [-1.,  0.]])
    """
    z, _ = scaled(reflectors)
    return z, torch.linalg.solve_triangular(z.mT @ z, z.mT, upper=True, unitriangular=True)


def thin_change(
    base: Tensor, u: Tensor, left: Tensor, delta: Tensor, right: Tensor, v: Tensor
) -> tuple[Tensor, Tensor]:
    """The thin factors of ``W = W₀ + L Rᵀ``, see Note [Turned].

    Args:
        base: W₀, (…, p, q); of a narrower dtype than the others it is multiplied in its own.
        u: reflectors of Q_u, (…, p, m₁).
        left: U_r, (…, p, r).
        delta: δ, (…, r).
        right: V_r, (…, q, r).
        v: reflectors of Q_v, (…, q, m₂).

    Returns:
        L, (…, p, r + m₁ + m₂), and R, (…, q, r + m₁ + m₂), differentiable.

    Example:
        >>> import torch
        >>> from spectral_param.functional.turned import thin_change
        >>> base, pair = torch.randn(4, 3), torch.randn(4, 1)
        >>> nothing = torch.empty(3, 0)
        >>> l, r = thin_change(base, torch.cat([pair, pair], 1), torch.empty(4, 0), torch.empty(0), nothing, nothing)
        >>> torch.allclose(l @ r.mT, torch.zeros(4, 3), atol=1e-5)
        True
    """
    (z_u, t_u), (z_v, t_v) = turn(u), turn(v)
    moved = left * delta.unsqueeze(-2)  # (p, r)
    c = _product(t_u, base) + (t_u @ moved) @ right.mT  # (m₁, q)
    b = _product(base, t_v.mT) + moved @ (t_v @ right).mT  # (p, m₂)
    return torch.cat([moved, -z_u, z_u @ (c @ t_v.mT) - b], -1), torch.cat([right, c.mT, z_v], -1)


def turned_product(
    x: Tensor, base: Callable[[Tensor], Tensor], u: Tensor, left: Tensor, delta: Tensor, right: Tensor, v: Tensor
) -> Tensor:
    """``x Wᵀ`` by the turns one after the other, for a W₀ of which only its product with vectors is known.

    Args:
        x: (…, q).
        base: ``x → x W₀ᵀ``.
        u: reflectors of Q_u, (p, m₁).
        left: U_r, (p, r).
        delta: δ, (r,).
        right: V_r, (q, r).
        v: reflectors of Q_v, (q, m₂).

    Returns:
        (…, p) in the dtype that ``base`` gives.

    Example:
        >>> import torch
        >>> from spectral_param.functional.turned import turned_product
        >>> w, pair, x = torch.randn(4, 3), torch.randn(4, 1), torch.randn(2, 3)
        >>> nothing = torch.empty(3, 0)
        >>> pairs = torch.cat([pair, pair], 1)
        >>> y = turned_product(x, lambda x: x @ w.mT, pairs, torch.empty(4, 0), torch.empty(0), nothing, nothing)
        >>> torch.allclose(y, x @ w.mT, atol=1e-5)
        True
    """
    (z_u, t_u), (z_v, t_v) = turn(u), turn(v)
    x = x - F.linear(F.linear(x, z_v.mT.to(x.dtype)), t_v.mT.to(x.dtype))
    y = base(x)
    moved = F.linear(x, (right * delta).mT.to(x.dtype)).to(y.dtype)
    y = y + F.linear(moved, left.to(y.dtype))
    return y - F.linear(F.linear(y, t_u.to(y.dtype)), z_u.to(y.dtype))


def changed_product(
    x: Tensor, base: Tensor, left: Tensor, right: Tensor, bias: Tensor | None, *, plainly: bool
) -> Tensor:
    """``x (W₀ + L Rᵀ)ᵀ + b`` for vectors x, in the dtype that W₀'s own product has.

    Args:
        x: (…, q).
        base: W₀, (p, q), or a view of it.
        left: L, (p, s); or (chunks, p / chunks, s) with R alike, for blocks that are stacked in W₀.
        right: R, (q, s).
        bias: b, (p,), or ``None``.
        plainly: in operations that every transform of torch can see through.

    Returns:
        (…, p).

    Example:
        >>> import torch
        >>> from spectral_param.functional.turned import changed_product
        >>> x, base, left, right = torch.randn(5, 3), torch.randn(2, 3), torch.randn(2, 1), torch.randn(3, 1)
        >>> y = changed_product(x, base, left, right, None, plainly=False)
        >>> torch.allclose(y, x @ (base + left @ right.mT).mT, atol=1e-5)
        True
    """
    y = F.linear(x, base, bias)
    left, right = left.to(y.dtype), right.to(y.dtype)
    if left.dim() > 2:  # (…, q) → (…, chunks, p / chunks) → (…, p)
        return y + torch.einsum("...q,cqs,cps->...cp", x.to(y.dtype), right, left).flatten(-2)
    if plainly or x.dim() < 2 or torch.is_autocast_enabled(x.device.type):
        return y + F.linear(F.linear(x, right.mT), left)
    inner = x.reshape(-1, x.shape[-1]) @ right
    return torch.addmm(y.view(-1, y.shape[-1]), inner, left.mT).view(y.shape)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The product in the narrower dtype of the two, given back in the wider."""
    if a.dtype == b.dtype:
        return a @ b
    narrow, wide = sorted((a.dtype, b.dtype), key=lambda dtype: dtype.itemsize)
    return (a.to(narrow) @ b.to(narrow)).to(wide)
