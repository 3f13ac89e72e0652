"""The cap on singular values in matrix products alone, which a GPU is fast at, where a decomposition is slow.

Note [Cap by products]
~~~~~~~~~~~~~~~~~~~~~~
With T = WᵀW / c² - I, whose eigenvalues are σ²/c² - 1, and T₊ its positive part,

    W (I + T₊)^(-1/2)

has the singular values min(σ, c) and the vectors of W. T₊ = T (I + sign T) / 2. The sign comes from Newton and Schulz's
X ← (3 a X - a³ X³) / 2, begun at T over a bound of its norm, with the factors a of Chen and Chow ("A stable scaling of
Newton-Schulz for improving the sign function computation of a Hermitian matrix", 2014), for eigenvalues between l and
1: a² = 3 / (1 + l + l²), which maps l to (3 a l - a³ l³) / 2. Where |T| has eigenvalues below l ‖T‖ their sign may be
anything between -1 and 1, and T₊ is off by no more than they are: that is all the error there is. The inverse root is
that of eigenvalues between 1 and 4, which the coupled iteration Y ← Y R, Z ← R Z, R = (3 I - Z Y) / 2 finds in six
steps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FARTHEST = 2.0  # of the cap, up to which σ may be
CLOSEST = 1e-4  # of the cap: how far σ may end from where an exact cap would have it
_STEPS_OF_ROOT = 6


def capped_by_products(stack: Tensor, product: Tensor, max: float) -> Tensor:
    """Matrices with every singular value above ``max`` moved to it, to 1e-4 of ``max``; see Note [Cap by products].

    Args:
        stack: (count, p, q), real, float32 or float64, with no σ above 2 ``max``.
        product: their Gram matrices, see :func:`~spectral_param.spectrum.dense.gram.gram`.
        max: the greatest singular value to leave.

    Returns:
        (count, p, q).

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.gram import gram
        >>> from spectral_param.spectrum.dense.products import capped_by_products
        >>> stack = torch.tensor([[[0.0, 1.6], [-0.5, 0.0]]])
        >>> capped_by_products(stack, gram(stack), 1.0).round(decimals=4)
        tensor([[[ 0.0000,  1.0000],
                 [-0.5000,  0.0000]]])
    """
    identity = torch.eye(product.shape[-1], dtype=product.dtype, device=product.device)
    excess = product / max**2 - identity
    positive = 0.5 * (excess + excess @ _sign(excess))
    root = _inverse_root(identity + 0.5 * (positive + positive.mT), identity)
    return stack @ root if stack.shape[-2] >= stack.shape[-1] else root @ stack


def _sign(symmetric: Tensor) -> Tensor:
    """The sign of (count, k, k), eigenvalue by eigenvalue, of those that are not near zero."""
    bound = FARTHEST**2 - 1  # of the norm: eigenvalues lie between -1 and this
    x, low = symmetric / bound, 2 * CLOSEST / bound
    while low < 1 - 1e-3:
        a = math.sqrt(3 / (1 + low + low**2))
        x, low = 1.5 * a * x - 0.5 * a**3 * (x @ x @ x), (3 * a * low - (a * low) ** 3) / 2
    return x


def _inverse_root(matrix: Tensor, identity: Tensor) -> Tensor:
    """A^(-1/2) of eigenvalues between 1 and the square of how far σ may be."""
    y, z = matrix / FARTHEST**2, identity
    for _ in range(_STEPS_OF_ROOT):
        r = 1.5 * identity - 0.5 * (z @ y)
        y, z = y @ r, r @ z
    return z / FARTHEST
