"""The leading singular triplets of a matrix, without the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDS, _DEGREE = 16, 10
_GROWTH = 1e4  # of the largest beside the least that is looked for, in a round; beyond, rounding buries the latter
_MORE = 32  # vectors beside those that are looked for: the wider the gap to what is damped, the fewer rounds


def leading_triplets(w: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor] | None:
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
        >>> from spectral_param.functional.leading import leading_triplets
        >>> w = torch.diag(torch.arange(300.0).double())
        >>> leading_triplets(w, 2, torch.float64)[1]
        tensor([299., 298.], dtype=torch.float64)
    """
    if w.shape[0] < w.shape[1]:
        found = leading_triplets(w.mT, count, dtype)
        return None if found is None else found[::-1]
    k, block = w.shape[1], count + _MORE
    if 4 * block > k:
        return None
    own = w.to(torch.promote_types(dtype, torch.float32))
    gram, tolerance = own.mT @ own, 8 * torch.finfo(own.dtype).eps
    x = torch.randn(k, block, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(gram)
    x = gram @ torch.linalg.qr(gram @ x).Q
    for _ in range(_ROUNDS):
        x = torch.linalg.qr(x).Q
        image = gram @ x
        values, turn = torch.linalg.eigh(x.mT @ image)
        x, image = x @ turn, image @ turn
        residual = torch.linalg.vector_norm(image - x * values, dim=0)[-count:].max()
        if residual <= tolerance * values[-1]:
            break
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
