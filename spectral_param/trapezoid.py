"""Storing reflectors without their zeros: a lower trapezoid n×m ↔ its n m - m (m - 1) / 2 numbers, row by row."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_size(n: int, m: int) -> int:
    """How many numbers a lower trapezoid n×m, m ≤ n, holds: what the paper counts for m reflectors.

    Example:
        >>> from spectral_param.trapezoid import packed_size
        >>> packed_size(32, 16)
        392
    """
    return n * m - m * (m - 1) // 2


def pack(dense: Tensor) -> Tensor:
    """Drops what stands above the diagonal: (…, n, m) → (…, packed_size(n, m)), contiguous.

    Example:
        >>> import torch
        >>> from spectral_param.trapezoid import pack
        >>> pack(torch.tensor([[1, 0], [2, 3], [4, 5]]))
        tensor([1, 2, 3, 4, 5])
    """
    m = dense.shape[-1]
    top = dense[..., :m, :].flatten(-2).index_select(-1, _triangle(m, dense.device))
    return torch.cat([top, dense[..., m:, :].flatten(-2)], dim=-1)


def unpack(packed: Tensor, n: int, m: int) -> Tensor:
    """Puts the zeros back: (…, packed_size(n, m)) → (…, n, m).

    Example:
        >>> import torch
        >>> from spectral_param.trapezoid import unpack
        >>> unpack(torch.tensor([1, 2, 3, 4, 5]), 3, 2)
        tensor([[1, 0],
                [2, 3],
                [4, 5]])
    """
    size = m * (m + 1) // 2
    top, rest = packed[..., :size], packed[..., size:]
    batch = packed.shape[:-1]
    square = packed.new_zeros(*batch, m * m).index_copy(-1, _triangle(m, packed.device), top)
    return torch.cat([square.reshape(*batch, m, m), rest.reshape(*batch, n - m, m)], dim=-2)


def _triangle(m: int, device: torch.device) -> Tensor:
    """Where the lower triangle of an m×m matrix lies in its m² numbers."""
    rows, columns = torch.tril_indices(m, m, device=device)
    return rows * m + columns
