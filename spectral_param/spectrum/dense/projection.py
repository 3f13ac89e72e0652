"""The nearest matrix with singular values in a range: from an SVD, or for a cap from the Gram matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.parametrization.blocks import Matrices
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.shards import whole, write_


@torch.no_grad()
def project_(weight: Tensor, matrices: Matrices, min: float, max: float) -> None:
    """Moves the singular values of a plain weight into [min, max], in place: the nearest such weight.

    What is not finite has none and stays as it is.

    Args:
        weight: of the shape that ``matrices`` is for; for a ``DTensor`` a collective.
        matrices: how it is read.
        min: the least singular value to leave.
        max: the greatest.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.parametrization.blocks import matrices_of
        >>> from spectral_param.spectrum.dense.projection import project_
        >>> weight = torch.diag(torch.tensor([3.0, 0.5]))
        >>> project_(weight, matrices_of(nn.Linear(2, 2), weight), 1.0, 2.0)
        >>> weight.diagonal()
        tensor([2., 1.])
    """
    entire = whole(weight.detach())
    if not entire.isfinite().all():
        return
    u, sigma, vh = torch.linalg.svd(matrices.of(wide(entire)), full_matrices=False)
    clipped = sigma.clamp(min, max)
    if not torch.equal(clipped, sigma):
        write_(weight, matrices.to_weight((u * clipped.unsqueeze(-2)) @ vh).to(weight.dtype))


def capped(stack: Tensor, product: Tensor, max: float) -> Tensor:
    """Matrices with every singular value above ``max`` moved to it; the others, and all vectors, stay.

    Taken off are the leading directions alone, W - W V diag(1 - max/σ) Vᵀ, with V from the eigenvectors of the Gram
    matrix: a third of an SVD's time.

    Args:
        stack: (count, p, q), finite, real or complex.
        product: their Gram matrices, see :func:`~spectral_param.spectrum.dense.gram.gram`.
        max: the greatest singular value to leave.

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.gram import gram
        >>> from spectral_param.spectrum.dense.projection import capped
        >>> stack = torch.tensor([[[0.0, 4.0], [-1.0, 0.0]]])
        >>> capped(stack, gram(stack), 2.0)
        tensor([[[ 0.,  2.],
                 [-1.,  0.]]])
    """
    squares, vectors = torch.linalg.eigh(product)
    sigma = squares.clamp_min(0).sqrt()
    count = int((sigma > max).sum(-1).amax())
    leading = vectors[..., -count:] if count else vectors[..., :0]
    taken = (1 - max / sigma[..., sigma.shape[-1] - count :]).clamp_min(0).unsqueeze(-2)
    if stack.shape[-2] >= stack.shape[-1]:
        return stack - (stack @ leading * taken) @ leading.mH
    return stack - leading @ (taken.mT * (leading.mH @ stack))
