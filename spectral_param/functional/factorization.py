"""W = U diag(σ) Vᵀ from the reflectors of U and V and σ (Eqs. 7 and 8 of the paper): built, or applied to vectors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectral_param.functional.householder import householder_apply, householder_product
from spectral_param.functional.low_rank import low_rank_factors, low_rank_weight
from spectral_param.functional.packing import unpack
from spectral_param.functional.thin_product import thin_product
from spectral_param.functional.ways import is_low_rank, is_thin
from spectral_param.sizes import Sizes


def packed_weight(u: Tensor | None, sigma: Tensor, v: Tensor | None, sizes: Sizes) -> Tensor:
    """Builds W from packed reflectors, by the algorithm that is the faster for their number.

    Args:
        u: packed reflectors of U, (…, packed_size(p, m₁)); ``None`` where m₁ = 0.
        sigma: (…, k), of any sign.
        v: packed reflectors of V, (…, packed_size(q, m₂)); ``None`` where m₂ = 0.
        sizes: p, q, m₁ and m₂.

    Returns:
        (…, p, q) in the dtype of ``sigma``.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import packed_weight
        >>> from spectral_param.sizes import Sizes
        >>> w = packed_weight(torch.randn(7), torch.tensor([3.0, 2.0, 1.0]), None, Sizes(4, 3, 2, 0))
        >>> torch.linalg.svdvals(w)
        tensor([3.0000, 2.0000, 1.0000])
    """
    if u is not None and v is not None and is_low_rank(sizes):
        return low_rank_weight(u, sigma, v, sizes)
    p, q, m1, m2 = sizes
    return svd_weight(_unpacked(u, p, m1), sigma, _unpacked(v, q, m2), p, q)


def packed_product(
    x: Tensor, u: Tensor | None, sigma: Tensor, v: Tensor | None, sizes: Sizes, bias: Tensor | None = None
) -> Tensor:
    """Applies W to the rows of x, ``x Wᵀ + b``, without building W.

    Args:
        x: (N, q) in the dtype of ``sigma``.
        u: as for :func:`packed_weight`.
        sigma: as there.
        v: as there.
        sizes: as there.
        bias: b, (p,), or ``None``.

    Returns:
        (…, N, p).

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import packed_product, packed_weight
        >>> from spectral_param.sizes import Sizes
        >>> u, sigma, v, sizes = torch.randn(7), torch.ones(3), torch.randn(3), Sizes(4, 3, 2, 1)
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(packed_product(x, u, sigma, v, sizes), x @ packed_weight(u, sigma, v, sizes).mT, atol=1e-5)
        True
    """
    p, q, m1, m2 = sizes
    k = sizes.k
    if u is not None and v is not None and is_thin(sizes, x.shape[-2]):
        left, right = low_rank_factors(u, sigma, v, sizes)
        if sigma.dim() == 1:
            return thin_product(x, sigma, left, right, bias)
        start = pad(x[..., :k] * sigma.unsqueeze(-2), (0, p - k))
        y = start - (x @ right) @ left.mT
        return y if bias is None else y + bias
    dense_u, dense_v = _unpacked(u, p, m1), _unpacked(v, q, m2)
    turned = x.mT if dense_v is None else householder_apply(dense_v, x.mT, transpose=True)
    scaled = pad(sigma.unsqueeze(-1) * turned[..., :k, :], (0, 0, 0, p - k))
    y = (scaled if dense_u is None else householder_apply(dense_u, scaled)).mT
    return y if bias is None else y + bias


def svd_weight(u: Tensor | None, sigma: Tensor, v: Tensor | None, p: int, q: int) -> Tensor:
    """Builds ``W = U[:, :k] diag(σ) V[:, :k]ᵀ``, k = min(p, q), as two products of reflectors.

    Args:
        u: reflectors of U, (…, p, m₁); ``None`` for U = I.
        sigma: (…, k), of any sign.
        v: reflectors of V, (…, q, m₂); ``None`` for V = I.
        p: rows of W.
        q: columns of W.

    Returns:
        (…, p, q) in the dtype of ``sigma``.

    Example:
        >>> import torch
        >>> from spectral_param.functional.factorization import svd_weight
        >>> w = svd_weight(torch.randn(4, 2), torch.tensor([3.0, 2.0, 1.0]), torch.randn(3, 2), 4, 3)
        >>> torch.linalg.svdvals(w)
        tensor([3.0000, 2.0000, 1.0000])
    """
    k = min(p, q)
    if v is None:
        w = pad(torch.diag_embed(sigma), (0, q - k))
    else:
        w = (householder_product(v, columns=k) * sigma.unsqueeze(-2)).mT
    if p > k:
        w = pad(w, (0, 0, 0, p - k))
    return w.contiguous() if u is None else householder_apply(u, w)


def _unpacked(packed: Tensor | None, n: int, m: int) -> Tensor | None:
    return None if packed is None else unpack(packed, n, m)
