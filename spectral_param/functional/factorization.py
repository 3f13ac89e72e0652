"""The orthogonal factors U and V, and W = U diag(σ) Vᵀ of them (Eqs. 7 and 8 of the paper): built, or applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectral_param.functional.by_hand import ByHand, operator
from spectral_param.functional.householder import first_columns, reflect
from spectral_param.functional.reflectors import pack, unpack

_SIGN = 1e-4  # of the reflector before: up to there a single entry is zero


class ReflectorProduct(NamedTuple):
    """An orthogonal n×n matrix as the product of m reflectors; the identity where m = 0.

    Attributes:
        packed: the reflectors without their zeros, (…, packed_size(n, m)); nothing is in there where m = 0.
        n: rows.
        m: reflectors.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> x = torch.randn(3, 2)
        >>> torch.equal(ReflectorProduct(torch.empty(0), 3, 0).apply(x), x)
        True
        >>> u = ReflectorProduct(torch.randn(5), 3, 2)
        >>> torch.allclose(u.apply(u.columns(2), transpose=True), torch.eye(3, 2), atol=1e-6)
        True
    """

    packed: Tensor
    n: int
    m: int

    def is_identity(self) -> bool:
        """Whether it turns nothing."""
        return self.m == 0

    def reflectors(self, *, plainly: bool = True) -> Tensor:
        """With their zeros, (…, n, m).

        A last reflector of one entry is a sign, zero for +1, and has no gradient. It is read as zero where it is next
        to nothing beside the reflector before it, so that noise on all numbers does not turn it.
        """
        if plainly:
            return _dense(self.packed, self.n, self.m)
        run = _operator if torch.compiler.is_compiling() else _Dense.apply
        return run(self.packed, self.n, self.m)

    def columns(self, count: int, *, plainly: bool = True) -> Tensor:
        """The first columns, (…, n, count)."""
        return first_columns(self.reflectors(plainly=plainly), count, plainly=plainly)

    def apply(self, x: Tensor, *, transpose: bool = False, plainly: bool = True) -> Tensor:
        """``U x``, or ``Uᵀ x``, for x (…, n, b), U never built."""
        if self.m == 0:
            return x
        return reflect(self.reflectors(plainly=plainly), x, transpose=transpose, plainly=plainly)


def _dense(packed: Tensor, n: int, m: int, *, plainly: bool = True) -> Tensor:
    dense = unpack(packed, n, m, plainly=plainly)
    if n == m > 1:
        with torch.no_grad():  # in place, in a tensor of its own
            sign, before = dense[..., -1, -1], dense[..., -2:, -2]
            sign.masked_fill_(sign.abs() <= _SIGN * before.abs().amax(-1), 0.0)
    return dense


class _Dense(ByHand):
    @staticmethod
    def forward(ctx: Any, packed: Tensor, n: int, m: int) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.rule, ctx.numbers = _Dense, (n, m)
        return _dense(packed, n, m, plainly=False)

    @staticmethod
    def compute(packed: Tensor, n: int, m: int) -> list[Tensor]:
        return [_dense(packed, n, m, plainly=False)]

    @staticmethod
    def gradients(
        grads: Sequence[Tensor],
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
        n: int,
        m: int,
    ) -> list[Tensor]:
        return [pack(grads[0], plainly=False)]

    plainly = staticmethod(_dense)


_operator = operator("unpack", _Dense, "Tensor packed", "int n, int m")


def svd_weight(u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, *, plainly: bool = True) -> Tensor:
    """Builds ``W = U[:, :k] diag(σ) V[:, :k]ᵀ``, k = min(p, q).

    Args:
        u: U, p×p.
        sigma: (…, k), of any sign.
        v: V, q×q.
        plainly: in operations that every transform of torch can see through; else with handwritten backwards.

    Returns:
        (…, p, q) in the dtype of ``sigma``.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct, svd_weight
        >>> u, v = ReflectorProduct(torch.randn(7), 4, 2), ReflectorProduct(torch.randn(5), 3, 2)
        >>> torch.linalg.svdvals(svd_weight(u, torch.tensor([3.0, 2.0, 1.0]), v))
        tensor([3.0000, 2.0000, 1.0000])
    """
    p, q, k = u.n, v.n, sigma.shape[-1]
    if v.is_identity():
        w = pad(torch.diag_embed(sigma), (0, q - k))
    else:
        w = (v.columns(k, plainly=plainly) * sigma.unsqueeze(-2)).mT  # (…, k, q)
    if p > k:
        w = pad(w, (0, 0, 0, p - k))
    return w.contiguous() if u.is_identity() else u.apply(w, plainly=plainly)


def svd_product(x: Tensor, u: ReflectorProduct, sigma: Tensor, v: ReflectorProduct, *, plainly: bool = True) -> Tensor:
    """Applies W to the rows of x, ``x Wᵀ``, by V, σ and U in turn.

    Args:
        x: (…, N, q) in the dtype of ``sigma``.
        u: U, p×p.
        sigma: (…, k), of any sign.
        v: V, q×q.
        plainly: as for :func:`svd_weight`.

    Returns:
        (…, N, p).

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import ReflectorProduct, svd_product, svd_weight
        >>> u, v = ReflectorProduct(torch.randn(7), 4, 2), ReflectorProduct(torch.randn(3), 3, 1)
        >>> x, sigma = torch.randn(5, 3), torch.ones(3)
        >>> torch.allclose(svd_product(x, u, sigma, v), x @ svd_weight(u, sigma, v).mT, atol=1e-5)
        True
    """
    p, k = u.n, sigma.shape[-1]
    columns = (x if plainly or torch.compiler.is_compiling() else _RowGradient.apply(x)).mT
    scaled = sigma.unsqueeze(-1) * v.apply(columns, transpose=True, plainly=plainly)[..., :k, :]  # (…, k, N)
    if p > k:
        scaled = pad(scaled, (0, 0, 0, p - k))
    return u.apply(scaled, plainly=plainly).mT


class _RowGradient(torch.autograd.Function):
    """x as it is, with a gradient that lies row by row in memory, as those of ``nn.Linear`` do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()
