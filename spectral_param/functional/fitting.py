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
from spectral_param.functional.leading import in_float64, leading_triplets
from spectral_param.functional.reduction import reduced
from spectral_param.torch_state.private import with_zeros

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
    [found], _ = reduced([in_float64(q)], lambda _, leads: torch.ones_like(leads))
    return found.to(q)


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
    """Finds reflectors and σ of p×q weights.

    Exact for m₁ = m₂ = min(p, q), for any finite weight, and for a multiple of an orthogonal matrix with m₁ + m₂ = n
    (Theorem 3). Otherwise the leading min(m₁, m₂) singular triplets are exact, what one side has more turns towards the
    rest, and the other σ minimise ‖W' - W‖_F. Worked out in float64 on the device of the weight, to 1e-14 of a float64
    weight or a small one, and to 1e-8 of others; reflectors have unit length.

    Args:
        weight: (…, p, q), finite.
        m1: reflectors of U, from 0 to min(p, q).
        m2: reflectors of V.

    Returns:
        Reflectors of U, (…, p, m₁), σ, (…, k), and reflectors of V, (…, q, m₂), float64.

    Example:
        >>> import torch
        >>> from spectral_param.functional.fitting import fit
        >>> u, sigma, v = fit(torch.eye(3), 3, 3)
        >>> sigma
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    lead, (p, q) = weight.shape[:-2], weight.shape[-2:]
    k, m = min(p, q), min(m1, m2)
    given = weight.detach().reshape(-1, p, q)
    may_be_orthogonal = m1 + m2 == p == q
    if may_be_orthogonal and len(given) > 1:  # some may be
        found = tuple(map(torch.stack, zip(*(fit(one, m1, m2) for one in given), strict=True)))
    elif may_be_orthogonal and (level := _level_of_orthogonal(in_float64(given), weight.dtype)) is not None:
        found = _fit_orthogonal(in_float64(given), level, m1, m2)
    else:
        triplets = zip(*(leading_triplets(one, m) for one in given), strict=True)
        left, sigma, right = (torch.stack(parts) if len(parts) > 1 else parts[0][None] for parts in triplets)
        sigma = sigma.where(sigma >= sigma[..., :1] * torch.finfo(torch.float64).eps, 0.0)  # an infinite one stays
        free = sigma == 0 if (sigma == 0).any() else None
        (u, v), _ = reduced([left, right], lambda i, leads: _signs(leads, None if free is None else free[..., i]))
        found = (u, sigma, v) if m == k else _with_the_rest(in_float64(given), u, sigma, v, m1, m2)
    u, sigma, v = (part.reshape(*lead, *part.shape[1:]) for part in found)
    return u, sigma, v


def draw(p: int, q: int, m1: int, m2: int, sigma: Tensor) -> Factors:
    """Draws U and V at random (see :func:`haar_reflectors`) around σ (k,); float64 on the CPU.

    Example:
        >>> import torch
        >>> from spectral_param.functional.fitting import draw
        >>> [t.shape for t in draw(5, 3, 2, 2, sigma=torch.ones(3))]
        [torch.Size([5, 2]), torch.Size([3]), torch.Size([3, 2])]
    """
    return haar_reflectors(p, m1), sigma.double(), haar_reflectors(q, m2)


def _signs(leads: Tensor, free: Tensor | None) -> Tensor:
    """Note [Signs]: the common sign that keeps the first entries low; for σ = 0 each has its own."""
    both = leads.sum(0)
    return 1 - 2 * ((both if free is None else torch.where(free, leads, both)) > 0).to(leads)


# ------------------------------------------------------------------------------------------- with fewer reflectors


def _with_the_rest(w: Tensor, u: Tensor, sigma: Tensor, v: Tensor, m1: int, m2: int) -> Factors:
    """What goes beyond the leading triplets: more reflectors on one side, and the other σ."""
    m = sigma.shape[-1]
    if m1 > m or m2 > m:
        rest = householder_apply(v, householder_apply(u, w, transpose=True).mT, transpose=True).mT[:, m:, m:]
        u, v = _append(u, _turn_towards(rest, m1 - m)), _append(v, _turn_towards(rest.mT, m2 - m))
    return u, torch.cat([sigma, _turned_diagonal(w, u, v)[:, m:]], -1), v


def _turned_diagonal(w: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The diagonal of Uᵀ W V, (…, k), with products of thin matrices alone: U = I - Z T."""
    (z_u, t_u), (z_v, t_v), k = compact_wy(u), compact_wy(v), min(w.shape[-2:])
    before = z_u.mT @ w  # Uᵀ W = W - T_uᵀ before
    behind = w @ z_v - t_u.mT @ (before @ z_v)  # Uᵀ W Z_v
    left = (t_u[..., :k] * before[..., :k]).sum(-2)
    right = (behind[..., :k, :].mT * t_v[..., :k]).sum(-2)
    return w.diagonal(dim1=-2, dim2=-1) - left - right


def _turn_towards(rest: Tensor, count: int) -> Tensor:
    """Reflectors whose product begins with the orthonormal columns nearest to the first ``count`` of ``rest``."""
    if count <= 0:
        return rest[..., :0]
    left, _, right = torch.linalg.svd(rest[..., :count], full_matrices=False)
    return householder_from_orthogonal(left @ right)


def _append(reflectors: Tensor, more: Tensor) -> Tensor:
    """Puts reflectors of the trailing coordinates behind those of all."""
    return torch.cat([reflectors, with_zeros(more, reflectors.shape[-2] - more.shape[-2], -2, first=True)], -1)


def _level_of_orthogonal(w: Tensor, dtype: torch.dtype) -> Tensor | None:
    """σ, (1,), of a matrix (1, n, n) whose σ are equal to the precision of a dtype; ``None`` for others."""
    tolerance = 16 * math.sqrt(w.shape[-1]) * torch.finfo(dtype).eps

    def all_equal(values: Tensor) -> bool:
        least, largest = values.aminmax()
        return bool((largest > 0) & (largest - least <= tolerance * largest))

    scale = torch.linalg.vector_norm(w, torch.inf)
    if not all_equal(torch.linalg.vector_norm(w / scale, dim=-1)):  # lengths of rows lie between σ, and are sooner had
        return None
    sigma = torch.linalg.svdvals(w)
    return sigma.mean(-1) if all_equal(sigma) else None


def _fit_orthogonal(w: Tensor, level: Tensor, m1: int, m2: int) -> Factors:
    """Theorem 3: U takes the first m₁ columns of W / σ, V what is left, an orthogonal m₂×m₂ matrix at the end."""
    w = w / level[:, None, None]
    u = householder_from_orthogonal(w[..., :m1])
    rest = householder_apply(u, w, transpose=True)[..., m1:, m1:]
    v = with_zeros(householder_from_orthogonal(rest.mT), m1, -2, first=True)
    return u, level[:, None].expand(-1, m1 + m2), v
