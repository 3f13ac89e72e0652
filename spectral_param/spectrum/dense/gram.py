"""Whether every singular value of a matrix is below a level, for certain, without a decomposition.

Note [Certificates]
~~~~~~~~~~~~~~~~~~~
A power iteration, of however many vectors, tells how large σ is at least: what it has not met may be larger, and after
a cap it has met the wrong ones, since the leading singular values are then all equal. How large σ is at most is told by
the Gram matrix G of the shorter side, k×k:

    σ_max < level  ⇔  level² I - G is positive definite  ⇔  its Cholesky decomposition exists,

which is a product and a third of one: n = 512 takes 5 ms on one core, an SVD 52. Rounding is far from an even chance:
G is off by about √n ε σ², and the level is taken 4 k ε lower.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gram(matrices: Tensor) -> Tensor:
    """WᴴW, or W Wᴴ where W is wide: the eigenvalues are σ².

    Args:
        matrices: (…, p, q).

    Returns:
        (…, k, k) with k = min(p, q).

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.gram import gram
        >>> gram(torch.tensor([[3.0, 4.0]]))
        tensor([[25.]])
    """
    return matrices.mH @ matrices if matrices.shape[-2] >= matrices.shape[-1] else matrices @ matrices.mH


def is_below(product: Tensor, level: float) -> Tensor:
    """Whether σ_max < level, for each of the matrices that :func:`gram` was taken of; see Note [Certificates].

    Args:
        product: (…, k, k), float32 or float64, or complex.
        level: what σ is compared with.

    Returns:
        (…), bool; False for what is not finite. A σ within rounding of the level counts as not below.

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.gram import gram, is_below
        >>> product = gram(torch.diag(torch.tensor([2.0, 1.0])))
        >>> is_below(product, 2.01).item(), is_below(product, 1.99).item()
        (True, False)
    """
    shifted = -product
    k = product.shape[-1]
    diagonal = shifted.diagonal(dim1=-2, dim2=-1)
    is_finite = diagonal.sum(-1).isfinite()
    diagonal.add_(level**2 * (1 - 4 * k * torch.finfo(product.dtype).eps))
    return (torch.linalg.cholesky_ex(shifted).info == 0) & is_finite
