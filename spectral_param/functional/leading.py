"""Leading singular triplets of a matrix that stays, and what is left of its spectrum."""

from __future__ import annotations

import torch
from torch import Tensor

_WHOLE = 512  # up to so many singular values all are computed; beyond, few are had from the Gram matrix


def leading_triplets(w: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular triplets, ``W ≈ U diag(σ) Vᵀ``.

    Worked out in float64, by an SVD or, where few of many are asked for, by the eigenvectors of the smaller of ``W Wᵀ``
    and ``Wᵀ W``: with the leading values alone nothing is lost by that.

    Args:
        w: (p, q), finite, of any floating dtype.
        rank: r, how many, from 0 to min(p, q).

    Returns:
        U, (p, r), σ, (r,), descending, and V, (q, r), float64 on the device of ``w``.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import leading_triplets
        >>> u, sigma, v = leading_triplets(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2)
        >>> sigma
        tensor([3., 2.], dtype=torch.float64)
    """
    p, q = w.shape
    if p > q:
        v, sigma, u = leading_triplets(w.mT, rank)
        return u, sigma, v
    w = w.detach().double()
    scale = w.abs().amax().clamp_min(torch.finfo(w.dtype).tiny) if w.numel() else 1.0
    w = w / scale
    if rank == 0:
        return w.new_empty(p, 0), w.new_empty(0), w.new_empty(q, 0)
    if p <= _WHOLE or 4 * rank > p:
        basis, triangle = torch.linalg.qr(w.mT) if q > p else (None, w.mT)  # (q, p), (p, p); faster than of W whole
        v, sigma, uh = torch.linalg.svd(triangle)
        v = v[:, :rank] if basis is None else basis @ v[:, :rank]
        return uh[:rank].mT.contiguous(), sigma[:rank] * scale, v.contiguous()
    u = torch.linalg.eigh(w @ w.mT).eigenvectors[:, -rank:].flip(-1)
    v = w.mT @ u
    sigma = torch.linalg.vector_norm(v, dim=0)
    return u.contiguous(), sigma * scale, v / sigma.clamp_min(torch.finfo(v.dtype).tiny)


def trailing_singular_values(w: Tensor, u: Tensor, sigma: Tensor, v: Tensor) -> Tensor:
    """The singular values that leading triplets leave, min(p, q) - r of them, float64, descending.

    Args:
        w: (p, q).
        u: U_r, (p, r).
        sigma: (r,).
        v: V_r, (q, r).

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import leading_triplets, trailing_singular_values
        >>> w = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        >>> trailing_singular_values(w, *leading_triplets(w, 1))
        tensor([2., 1.], dtype=torch.float64)
    """
    rest = _rest(w, u, sigma, v)
    if rest.shape[0] > rest.shape[1]:
        rest = rest.mT
    triangle = torch.linalg.qr(rest.mT, mode="r").R if rest.shape[1] > rest.shape[0] else rest
    return torch.linalg.svdvals(triangle)[: min(w.shape) - len(sigma)]


def trailing_vectors(w: Tensor, u: Tensor, sigma: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The singular vectors that leading triplets leave, in the order of :func:`trailing_singular_values`.

    Args:
        w: (p, q).
        u: U_r, (p, r).
        sigma: (r,).
        v: V_r, (q, r).

    Returns:
        (p, k - r) and (q, k - r), k = min(p, q), float64, orthogonal to U_r and V_r.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import leading_triplets, trailing_vectors
        >>> w = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        >>> more, _ = trailing_vectors(w, *leading_triplets(w, 1))
        >>> more.abs()
        tensor([[0., 1.],
                [0., 0.],
                [1., 0.]], dtype=torch.float64)
    """
    # Within the complements of U_r and V_r, so that vectors of σ = 0 lie in there too.
    left, right = _complement(u), _complement(v)  # (p, p - r), (q, q - r)
    a, _, bh = torch.linalg.svd(left.mT @ w.detach().double() @ right, full_matrices=False)
    count = min(w.shape) - len(sigma)
    return left @ a[:, :count], right @ bh[:count].mT


def _rest(w: Tensor, u: Tensor, sigma: Tensor, v: Tensor) -> Tensor:
    return w.detach().double() - (u.double() * sigma.double()) @ v.double().mT


def _complement(u: Tensor) -> Tensor:
    """Orthonormal columns orthogonal to those of u, (n, r) → (n, n - r)."""
    return torch.linalg.qr(u.double(), mode="complete").Q[:, u.shape[1] :]
