"""Leading singular triplets of a matrix that stays, and what is left of its spectrum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_SMALL = 256  # up to so many singular values they are had from an SVD in float64, in no time
_WELL = 1e-5  # of the largest σ, above which ε σ₁² / σ² is small
_ROUNDS, _DEGREE = 16, 10
_GROWTH = 1e4  # of the largest beside the least that is looked for, in a round; beyond, rounding buries the latter
_MORE = 32  # vectors beside those that are looked for: the wider the gap to what is damped, the fewer rounds


def leading_triplets(w: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """The leading singular triplets, ``W ≈ U diag(σ) Vᵀ``.

    Few of many are found by :func:`iterated_triplets`, and those of a float32 weight, or where σ lie too close for it,
    by :func:`gram_triplets`, both to the precision of ``w``; the others by an SVD in float64.

    Args:
        w: (p, q), finite, of any floating dtype.
        rank: r, how many, from 0 to min(p, q).

    Returns:
        U, (p, r), σ, (r,), descending, and V, (q, r), float64 on the device of ``w``, on the CPU for one without
        float64.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import leading_triplets
        >>> u, sigma, v = leading_triplets(torch.diag(torch.tensor([1.0, 3.0, 2.0])), 2)
        >>> sigma
        tensor([3., 2.], dtype=torch.float64)
    """
    p, q = w.shape
    if p < q:
        v, sigma, u = leading_triplets(w.mT, rank)
        return u, sigma, v
    dtype, w = torch.promote_types(w.dtype, torch.float32), in_float64(w)
    if rank == 0:
        return w.new_empty(p, 0), w.new_empty(0), w.new_empty(q, 0)
    scale = torch.linalg.vector_norm(w, torch.inf).clamp_min(torch.finfo(w.dtype).tiny)
    w = w / scale
    found = iterated_triplets(w, rank, dtype) if 4 * rank <= q else None
    if found is None and q > _SMALL and (dtype == torch.float32 or 4 * rank <= q):
        found = gram_triplets(w, rank, dtype)
    if found is None:
        basis, triangle = torch.linalg.qr(w) if p > q else (None, w)  # faster than of W whole
        u, sigma, vh = torch.linalg.svd(triangle)
        found = u[:, :rank] if basis is None else basis @ u[:, :rank], sigma[:rank], vh[:rank].mT
    u, sigma, v = found
    return u, sigma * scale, v


def restored_triplets(w: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Triplets of a matrix from vectors that were rounded since, as by a file in half precision.

    They are made orthonormal again by Schulz's iteration, which turns none into another: rounding by ε leaves ε⁴. σ are
    ``uᵀ W v``, off by ε² beside gaps in the spectrum.

    Args:
        w: (…, p, q).
        u: (…, p, r), orthonormal but for rounding.
        v: (…, q, r).

    Returns:
        U, σ, (…, r), and V, float64 on the device of ``w``, on the CPU for one without float64.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import leading_triplets, restored_triplets
        >>> w = torch.randn(5, 4)
        >>> u, sigma, v = leading_triplets(w, 2)
        >>> torch.allclose(restored_triplets(w, u.bfloat16(), v.bfloat16())[1], sigma, rtol=1e-3)
        True
    """
    w, u, v = map(in_float64, (w, u, v))
    for _ in range(2):
        u, v = (1.5 * x - 0.5 * x @ (x.mT @ x) for x in (u, v))
    return u, (u * (w @ v)).sum(-2), v


def in_float64(tensor: Tensor) -> Tensor:
    """Without a graph, on its device, or on the CPU where that has no float64."""
    device = "cpu" if tensor.device.type == "mps" else tensor.device
    return tensor.detach().to(device, torch.float64)


def gram_triplets(w: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor] | None:
    """Finds the first singular values and vectors from the eigenvectors of WᵀW.

    With V from there ``W V = Q R`` has nearly a diagonal R. What stands beside its diagonal is rounding, ``ε σ₁² / σ``
    in the row of σ and no more than σ: in float64 too little to be seen in a float32 W, whatever its σ. Where none of
    them is small, ``W V`` has orthogonal columns as it is.

    Args:
        w: (p, q) float64, p at least q.
        count: how many.
        dtype: of the weight, to whose precision the triplets are found.

    Returns:
        As :func:`iterated_triplets`, U orthonormal to the precision of a float32 weight; ``None`` where they are not
        found to that of ``dtype``.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import gram_triplets
        >>> w = torch.diag(torch.arange(300.0).double())
        >>> gram_triplets(w, 2, torch.float32)[1]
        tensor([299., 298.], dtype=torch.float64)
    """
    v = torch.linalg.eigh(w.mT @ -w).eigenvectors[:, :count]
    image = w @ v
    whole, sigma = count == w.shape[1], torch.linalg.vector_norm(image, dim=0)
    if whole and dtype == torch.float32 and (sigma > _WELL * sigma.amax()).all():
        return image.div_(sigma), sigma, v
    packed, tau = torch.geqrf(image)
    sigma = packed.diagonal().clone()
    missed = torch.linalg.vector_norm(packed[:count].mT.tril(-1))  # of R, transposed: fast in its order in memory
    u = torch.linalg.householder_product(packed, tau)
    if not whole:
        missed = missed + torch.linalg.vector_norm(w.mT @ u - v * sigma)
    tolerance = torch.finfo(dtype).eps * (1 / 64 if dtype == torch.float32 else 16)
    if not missed <= tolerance * torch.linalg.vector_norm(sigma):
        return None
    return u, sigma.abs(), v * torch.where(sigma < 0, -1.0, 1.0)


def iterated_triplets(w: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor] | None:
    """Finds the first singular values and vectors by subspace iteration, filtered by Chebyshev polynomials.

    A polynomial of WᵀW that stays small on what the last round says is to be damped, and grows steeply beyond; in the
    weight's own precision until it has nothing more to give, and then in that of ``w``.

    Args:
        w: (p, q) float64.
        count: how many.
        dtype: of the weight, to whose precision the triplets are found.

    Returns:
        U, (p, count), σ, (count,), and V, (q, count), float64; ``None`` where all of them cost no more, or where σ lie
        too close for it.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import iterated_triplets
        >>> w = torch.diag(torch.arange(300.0).double())
        >>> iterated_triplets(w, 2, torch.float64)[1].round()
        tensor([299., 298.], dtype=torch.float64)
    """
    if w.shape[0] < w.shape[1]:
        found = iterated_triplets(w.mT, count, dtype)
        return None if found is None else found[::-1]
    k, block = w.shape[1], count + _MORE
    if 4 * block > k:
        return None
    own = w.to(torch.promote_types(dtype, torch.float32))
    gram, tolerance = own.mT @ own, 8 * torch.finfo(own.dtype).eps
    x = torch.randn(k, block, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(gram)
    x = gram @ torch.linalg.qr(gram @ x).Q
    before = math.inf
    for _ in range(_ROUNDS):
        x = torch.linalg.qr(x).Q
        image = gram @ x
        values, turn = torch.linalg.eigh(x.mT @ image)
        x, image = x @ turn, image @ turn
        residual = torch.linalg.vector_norm(image - x * values, dim=0)[-count:].max().item()
        enough = tolerance * values[-1].item()
        if residual <= enough or before < 2 * residual <= 8 * enough:  # or nothing but rounding is left
            break
        before = residual
        least, largest = values[-count].item(), values[-1].item()
        degree = min(_DEGREE, 1 + int(math.log(_GROWTH) / math.log(max(largest / max(least, 1e-300), 1 + 1e-9))))
        x = _filtered(gram, x, values[0].item(), largest, degree)
    x = torch.linalg.qr(x.double()).Q
    x = torch.linalg.qr(w.mT @ (w @ x)).Q
    q, r = torch.linalg.qr(w @ x)
    left, sigma, right = torch.linalg.svd(r)
    u, sigma, v = q @ left[:, :count], sigma[:count], x @ right[:count].mT
    missed = torch.linalg.vector_norm(w.mT @ u - v * sigma, dim=0).max()
    return (u, sigma, v) if missed <= 8 * tolerance * sigma[0] else None


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


def _filtered(gram: Tensor, x: Tensor, cut: float, largest: float, degree: int) -> Tensor:
    """A Chebyshev polynomial of the Gram matrix, at most one in size on [0, cut] before it is scaled to one at largest.

    Scaled as it grows, so that it does not overflow.
    """
    half = cut / 2
    scale = start = half / (largest - half)
    before, now = x, (gram @ x).sub_(x, alpha=half).mul_(scale / half)
    for _ in range(degree - 1):
        following = 1 / (2 / start - scale)
        further = (gram @ now).sub_(now, alpha=half).mul_(2 * following / half).sub_(before, alpha=scale * following)
        before, now, scale = now, further, following
    return now
