"""W = U diag(σ) Vᵀ from the reflectors of U and V and σ (Eqs. 7 and 8 of the paper)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectral_param.householder import householder_apply, householder_product


def svd_weight(u: Tensor | None, sigma: Tensor, v: Tensor | None, p: int, q: int) -> Tensor:
    """Builds ``W = U[:, :k] diag(σ) V[:, :k]ᵀ``, k = min(p, q).

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
        >>> from spectral_param.factorization import svd_weight
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
