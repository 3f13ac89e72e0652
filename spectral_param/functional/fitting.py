"""Reflectors and σ for a weight that is given, or drawn at random.

Note [Signs]
    ``(u_i, v_i)`` may become ``(-u_i, -v_i)`` without changing W. At every step that sign is chosen to keep both
    reflectors as far from zero as they can be, since a zero reflector has no gradient. Where a column already is e₁,
    reflecting along any direction orthogonal to e₁ keeps it, and a non-zero reflector is found there. What remains
    is a reflector with a single entry, where zero or not is the sign of det W.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectral_param.functional.householder import compact_wy, householder_apply
from spectral_param.functional.leading import iterated_triplets
from spectral_param.functional.reduction import reduced

Factors = tuple[Tensor, Tensor, Tensor]
"""Reflectors of U (p, m₁), σ (k,), reflectors of V (q, m₂)."""


def householder_from_orthogonal(q: Tensor) -> Tensor:
    """Finds the reflectors whose product begins with given orthonormal columns: a Householder QR with R = I.

    Args:
        q: (…, n, k), orthonormal columns, float32 or float64.

    Returns:
        (…, n, k) reflectors of unit length, so that ``householder_product(r, columns=k)`` is ``q``. None is zero
        but, for k = n and det q of one sign, the last, which has a single entry. Not differentiable.

    Raises:
        TypeError: if ``q`` is not float32 or float64.
        ValueError: if there are more columns than rows.

    Example:
        >>> import torch
        >>> from spectral_param.functional import householder_from_orthogonal, householder_product
        >>> q = torch.linalg.qr(torch.randn(5, 3)).Q
        >>> torch.allclose(householder_product(householder_from_orthogonal(q), columns=3), q, atol=1e-6)
        True
    """
    if q.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"q: expected float32 or float64, got {q.dtype}.")
    if q.dim() < 2 or q.shape[-1] > q.shape[-2]:
        raise ValueError(f"q: expected (…, n, k) with k at most n, got {tuple(q.shape)}.")
    if q.numel() == 0:
        return q.detach().clone()
    flat = q.detach().to("cpu", torch.float64).reshape(-1, *q.shape[-2:])
    found = [reduced([basis], lambda _, leads: [1.0] * len(leads))[0][0] for basis in flat]
    return torch.stack(found).reshape(q.shape).to(q)


def haar_reflectors(n: int, m: int) -> Tensor:
    """Draws m reflectors, float64, whose product's first m columns are uniformly distributed orthonormal ones.

    Column j takes e_j to a uniform direction among the last n - j coordinates (the subgroup algorithm of Diaconis and
    Shahshahani), so m = n gives a Haar-distributed orthogonal matrix. Entries are about as large as standard normal
    ones: with them Adam, whose steps are of one size in every entry, turns a reflector by about its learning rate.

    Example:
        >>> from spectral_param.functional.fitting import haar_reflectors
        >>> haar_reflectors(5, 3).shape
        torch.Size([5, 3])
    """
    x = torch.randn(n, m, dtype=torch.float64, device="cpu").tril()
    lead, tail = x.diagonal(), x.tril(-1)
    norm, tail_square = torch.linalg.vector_norm(x, dim=0), tail.square().sum(0)
    # x - ‖x‖ e₁, its first entry without cancellation
    first = torch.where(lead > 0, -tail_square / (norm + lead), lead - norm)
    return tail.diagonal_scatter(first)


def fit(weight: Tensor, m1: int, m2: int) -> Factors:
    """Finds reflectors and σ of a p×q weight.

    Exact for m₁ = m₂ = min(p, q), for any finite weight, and for a multiple of an orthogonal matrix with m₁ + m₂ = n
    (Theorem 3). Otherwise the leading min(m₁, m₂) singular triplets are exact, what one side has more turns towards the
    rest, and the other σ minimise ‖W' - W‖_F. Worked out in float64 on the CPU; reflectors have unit length.

    Args:
        weight: (p, q), finite.
        m1: reflectors of U, from 0 to min(p, q).
        m2: reflectors of V.

    Returns:
        Reflectors of U (p, m₁), σ (k,) and reflectors of V (q, m₂), float64 on the CPU.

    Example:
        >>> import torch
        >>> from spectral_param.functional.fitting import fit
        >>> u, sigma, v = fit(torch.eye(3), 3, 3)
        >>> sigma
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    p, q = weight.shape
    k = min(p, q)
    w = weight.detach().to("cpu", torch.float64)
    scale = torch.linalg.vector_norm(w, torch.inf).item() or 1.0
    w = w / scale
    m, may_be_orthogonal = min(m1, m2), m1 + m2 == p == q
    found = iterated_triplets(w, m, weight.dtype) if m > 0 and not may_be_orthogonal else None
    if found is None:
        left, sigma, right = torch.linalg.svd(w, full_matrices=False)
        if may_be_orthogonal and _all_equal(sigma, weight.dtype):
            u, sigma, v = _fit_orthogonal(w, sigma.mean().item(), m1, m2)
            return u, sigma * scale, v
        found = left[:, :m], sigma, right[:m].mT

    left, sigma, right = found
    sigma = sigma.where(sigma > sigma[0] * torch.finfo(torch.float64).eps, 0.0)
    free = (sigma == 0).tolist()
    (u, v), _ = reduced([left, right], lambda i, leads: _signs(leads, free[i]))
    if m < k:
        if m1 > m or m2 > m:
            rest = householder_apply(v, householder_apply(u, w, transpose=True).mT, transpose=True).mT[m:, m:]
            u, v = _append(u, _turn_towards(rest, m1 - m)), _append(v, _turn_towards(rest.mT, m2 - m))
        sigma = torch.cat([sigma[:m], _turned_diagonal(w, u, v)[m:]])
    return u, sigma * scale, v


def draw(p: int, q: int, m1: int, m2: int, sigma: Tensor) -> Factors:
    """Draws U and V at random (see :func:`haar_reflectors`) around σ (k,); float64 on the CPU.

    Example:
        >>> import torch
        >>> from spectral_param.functional.fitting import draw
        >>> [t.shape for t in draw(5, 3, 2, 2, sigma=torch.ones(3))]
        [torch.Size([5, 2]), torch.Size([3]), torch.Size([3, 2])]
    """
    return haar_reflectors(p, m1), sigma.double(), haar_reflectors(q, m2)


def _signs(leads: list[float], free: bool) -> list[float]:
    """Note [Signs]: the common sign that keeps the first entries low; for σ = 0 each has its own."""
    if free:
        return [-math.copysign(1.0, lead) for lead in leads]
    return [1.0 if max(leads) <= -min(leads) else -1.0] * len(leads)


# ------------------------------------------------------------------------------------------- with fewer reflectors


def _turned_diagonal(w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The diagonal of Uᵀ W V, (k,), with products of thin matrices alone: U = I - Z T."""
    (z_u, t_u), (z_v, t_v), k = compact_wy(u), compact_wy(v), min(w.shape)
    before = z_u.mT @ w  # Uᵀ W = W - T_uᵀ before
    behind = w @ z_v - t_u.mT @ (before @ z_v)  # Uᵀ W Z_v
    left, right = (t_u[:, :k] * before[:, :k]).sum(0), (behind[:k].mT * t_v[:, :k]).sum(0)
    return w.diagonal() - left - right


def _turn_towards(rest: Tensor, count: int) -> Tensor:
    """Reflectors whose product begins with the orthonormal columns nearest to the first ``count`` of ``rest``."""
    if count <= 0:
        return rest.new_zeros(rest.shape[0], 0)
    left, _, right = torch.linalg.svd(rest[:, :count], full_matrices=False)
    return householder_from_orthogonal(left @ right)


def _append(reflectors: Tensor, more: Tensor) -> Tensor:
    """Puts reflectors of the trailing coordinates behind those of all."""
    above = reflectors.shape[0] - more.shape[0]
    below = torch.cat([more.new_zeros(above, more.shape[1]), more])
    return torch.cat([reflectors, below], dim=1)


def _all_equal(sigma: Tensor, dtype: torch.dtype) -> bool:
    tolerance = 16 * math.sqrt(len(sigma)) * torch.finfo(dtype).eps
    return bool(sigma[0] > 0) and bool(sigma[0] - sigma[-1] <= tolerance * sigma[0])


def _fit_orthogonal(w: Tensor, level: float, m1: int, m2: int) -> Factors:
    """Theorem 3: U takes the first m₁ columns of W / σ, V what is left, an orthogonal m₂×m₂ matrix at the end."""
    n = m1 + m2
    u = householder_from_orthogonal(w[:, :m1] / level)
    rest = householder_apply(u, w, transpose=True)[m1:, m1:] / level
    v = w.new_zeros(n, m2)
    v[m1:] = householder_from_orthogonal(rest.mT)
    return u, w.new_full((n,), level), v
