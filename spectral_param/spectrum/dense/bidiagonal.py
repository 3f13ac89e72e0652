"""The greatest singular value of a matrix, from products with single vectors."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.spectrum.dense.krylov import DENSE
from spectral_param.torch_state.precision import full_precision

_STEPS = 16
_NOTHING_LEFT = 1e-4  # of σ_max, below which a new direction is mostly rounding
_ORDINARY = 1e-12, 1e12  # sizes whose squares are far from the ends of float32


@torch.no_grad()
def greatest_singular_value(matrix: Tensor, size: float) -> float:
    """σ_max by the bidiagonalization of Golub and Kahan from a random vector, or an SVD of a small matrix.

    It is never too large, but for rounding. By how much it is too small is measured, not proven: by less than 1 %, also
    where singular values lie close together. The same matrix gives the same number.

    Args:
        matrix: (p, q), float32 or float64, finite.
        size: its Frobenius norm.

    Returns:
        σ_max; exact up to a shorter side of 128.

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.bidiagonal import greatest_singular_value
        >>> greatest_singular_value(torch.diag(torch.tensor([1.0, 3.0, 2.0])), size=14**0.5)
        3.0
    """
    if min(matrix.shape) <= DENSE or size == 0:
        return torch.linalg.svdvals(matrix)[0].item()
    with full_precision(matrix.device.type):
        if _ORDINARY[0] < size < _ORDINARY[1]:
            return _from_products(matrix)
        return size * _from_products(matrix / size)


def _from_products(matrix: Tensor) -> float:
    """σ_max of B = Pᵀ W Q, upper bidiagonal, with entries that are lengths of what W and Wᵀ make of each other's."""
    generator = torch.Generator(matrix.device).manual_seed(0)
    right = torch.randn(matrix.shape[1], dtype=matrix.dtype, device=matrix.device, generator=generator)
    left, lengths = matrix.new_zeros(matrix.shape[0]), [torch.linalg.vector_norm(right)]
    right /= lengths[0]
    for _ in range(_STEPS):
        left = torch.mv(matrix, right).addcmul_(left, lengths[-1], value=-1)
        lengths.append(torch.linalg.vector_norm(left))
        left /= lengths[-1]
        right = torch.mv(matrix.mT, left).addcmul_(right, lengths[-1], value=-1)
        lengths.append(torch.linalg.vector_norm(right))
        right /= lengths[-1]
    found = torch.stack(lengths[1:-1]).double().cpu()
    is_new = (found > _NOTHING_LEFT * found.nan_to_num().amax()).cumprod(0).bool()  # and all before it
    found = found.where(is_new, 0.0)
    return torch.linalg.svdvals(torch.diag(found[::2]) + torch.diag(found[1::2], 1))[0].item()
