"""The leading singular values and vectors of a matrix, from products with it alone."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.torch_state.precision import full_precision

DENSE = 128  # the shorter side up to which a decomposition costs no more


@torch.no_grad()
def leading_svd(matrix: Tensor, k: int, steps: int = 8, spare: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """The k leading singular values with their vectors, by block Krylov iteration.

    Musco and Musco, 2015: a block of k + ``spare`` random vectors, the products of W Wᵀ with it, and the SVD of what W
    is on their span. σ is never too large. By how much it is too small is measured, not proven for so few steps: with
    the default by less than 1 %, also where singular values lie close together; more ``steps`` bring it nearer. The
    same matrix gives the same numbers. Up to a shorter side of 128 all is exact.

    Args:
        matrix: (p, q), float32 or float64.
        k: how many; no more than min(p, q) are returned.
        steps: products with W and with Wᵀ.
        spare: vectors beside the k.

    Returns:
        U (p, k), σ (k,) descending, Vᵀ (k, q). NaN for a matrix that is not finite.

    Raises:
        ValueError: if k or ``steps`` is not positive.

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.dense.krylov import leading_svd
        >>> leading_svd(torch.diag(torch.tensor([1.0, 3.0, 2.0])), k=2)[1]
        tensor([3., 2.])
    """
    for name, count in (("k", k), ("steps", steps)):
        if count < 1:
            raise ValueError(f"{name}: expected a positive number, got {count}.")
    p, q = matrix.shape
    k = min(k, p, q)
    if not matrix.isfinite().all():
        return matrix.new_full((p, k), torch.nan), matrix.new_full((k,), torch.nan), matrix.new_full((k, q), torch.nan)
    with full_precision(matrix.device.type):
        width = (k + spare) * steps
        if min(p, q) <= max(DENSE, width):
            u, sigma, vh = torch.linalg.svd(matrix, full_matrices=False)
            return u[:, :k], sigma[:k], vh[:k]
        basis = _krylov(_scaled(matrix), k + spare, steps)
        u, sigma, vh = torch.linalg.svd(basis.mT @ matrix, full_matrices=False)
        return basis @ u[:, :k], sigma[:k], vh[:k]


def _scaled(matrix: Tensor) -> Tensor:
    """Itself, or a multiple where squares of its products would not fit."""
    low, high = (float(end) for end in matrix.aminmax())
    size = max(-low, high)
    return matrix if 1e-12 < size < 1e12 or size == 0 else matrix / size


def _krylov(matrix: Tensor, width: int, steps: int) -> Tensor:
    """An orthonormal basis (p, width·steps) of the span of W Ω, (W Wᵀ) W Ω, and so on."""
    generator = torch.Generator(matrix.device).manual_seed(0)
    start = torch.randn(matrix.shape[1], width, dtype=matrix.dtype, device=matrix.device, generator=generator)
    blocks = [torch.linalg.qr(matrix @ start).Q]
    for _ in range(steps - 1):
        blocks.append(torch.linalg.qr(matrix @ (matrix.mT @ blocks[-1])).Q)
    return torch.linalg.qr(torch.cat(blocks, 1)).Q
