"""What is computed in float32 at least, whatever it is stored in."""

from __future__ import annotations

from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    """In float32 where it is narrower; differentiable.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.precision import wide
        >>> wide(torch.ones(2, dtype=torch.bfloat16)).dtype, wide(torch.ones(2, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor
