"""Vectors times W as a diagonal less a product of two thin matrices, ``x ↦ σ x - L (Rᵀ x) + b``.

The backward is handwritten: one buffer each way, where operation by operation the vectors would be written five times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.by_hand import ByHand, operator
from spectral_param.torch_state.private import with_zeros


def thin_product(
    x: Tensor, sigma: Tensor, left: Tensor, right: Tensor, bias: Tensor | None = None, *, plainly: bool = False
) -> Tensor:
    """``x (Σ - L Rᵀ)ᵀ + b`` for rows x, Σ the p×q matrix with σ on its diagonal.

    Args:
        x: (N, q).
        sigma: (k,), k = min(p, q), or (blocks, k) for several blocks at once.
        left: L, (p, r), or (blocks, p, r).
        right: R, (q, r), or (blocks, q, r).
        bias: b, (p,), or ``None``.
        plainly: in operations that every transform of torch can see through.

    Returns:
        (N, p), or (blocks, N, p), differentiable any number of times.

    Example:
        >>> import torch
        >>> from spectral_param.functional.thin_product import thin_product
        >>> x, sigma, left, right = torch.randn(5, 3), torch.ones(2), torch.randn(2, 1), torch.randn(3, 1)
        >>> w = torch.eye(2, 3) - left @ right.mT
        >>> torch.allclose(thin_product(x, sigma, left, right), x @ w.mT, atol=1e-5)
        True
    """
    if plainly or sigma.dim() > 1:
        return _plain(x, sigma, left, right, bias)
    run = _operator if torch.compiler.is_compiling() else _ThinProduct.apply
    return run(x, sigma, left, right, bias)


def _scaled(x: Tensor, sigma: Tensor, width: int) -> Tensor:
    """σ x in the first k of ``width`` columns, the others zero; a tensor of its own."""
    k = sigma.shape[-1]
    scaled = x[..., :k] * (sigma if sigma.dim() == 1 else sigma.unsqueeze(-2))
    return with_zeros(scaled, width - k, -1) if width > k else scaled


def _plain(x: Tensor, sigma: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    y = _scaled(x, sigma, left.shape[-2]) - (x @ right) @ left.mT
    return y if bias is None else y + bias


class _ThinProduct(ByHand):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sigma: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
        y, inner = _ThinProduct.compute(x, sigma, left, right, bias)
        ctx.save_for_backward(x, sigma, left, right, bias, inner)
        ctx.rule, ctx.numbers = _ThinProduct, ()
        return y

    @staticmethod
    def compute(x: Tensor, sigma: Tensor, left: Tensor, right: Tensor, bias: Tensor | None) -> list[Tensor]:
        inner = x @ right
        y = _scaled(x, sigma, left.shape[0]).addmm_(inner, left.mT, alpha=-1)
        return [y if bias is None else y.add_(bias), inner]

    @staticmethod
    def gradients(
        grads: Sequence[Tensor], tensors: Sequence[Tensor], kept: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        # x: (N, q)
        # grad: (N, p)
        # left: (p, r), L
        # right: (q, r), R
        # inner: (N, r), x R
        [grad], [inner], (x, sigma, left, right, _) = grads, kept, tensors
        k = sigma.shape[0]
        outer = grad @ left  # (N, r)
        d_sigma = (grad[:, :k] * x[:, :k]).sum(0) if needs[1] else None  # (k,)
        return [
            _scaled(grad, sigma, x.shape[1]).addmm_(outer, right.mT, alpha=-1) if needs[0] else None,  # (N, q)
            d_sigma,
            (inner.mT @ grad).neg_().mT if needs[2] else None,  # (p, r); in this order faster than its transpose
            (outer.mT @ x).neg_().mT if needs[3] else None,  # (q, r)
            grad.sum(0) if needs[4] else None,  # (p,)
        ]

    plainly = staticmethod(_plain)


_operator = operator("thin_product", _ThinProduct, "Tensor x, Tensor sigma, Tensor left, Tensor right, Tensor? bias")
