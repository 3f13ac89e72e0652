"""Weights that are kept in fewer bits, as tensors of a class of their own, such as those of torchao."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spectral_param.torch_state.private import is_traceable_wrapper_subclass
from spectral_param.torch_state.shards import is_shard


def is_quantized(tensor: Tensor) -> bool:
    """Whether a tensor says its numbers by ``dequantize`` alone.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.quantized import is_quantized
        >>> is_quantized(torch.ones(2))
        False
    """
    return is_traceable_wrapper_subclass(tensor) and not is_shard(tensor) and hasattr(tensor, "dequantize")


def numbers(tensor: Tensor) -> Tensor:
    """The tensor, or what it stands for where it is quantized.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.quantized import numbers
        >>> numbers(torch.ones(2))
        tensor([1., 1.])
    """
    quantized: Any = tensor
    return quantized.dequantize() if is_quantized(tensor) else tensor
