"""Shapes and dtypes of what a scan is given, on which compiled forms rely."""

from __future__ import annotations

from torch import Tensor


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    """Raises ``ValueError`` for another shape.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.shapes import check_shape
        >>> check_shape("bias", torch.zeros(2), (3,))
        Traceback (most recent call last):
        ValueError: bias: expected shape (3,), got (2,).
    """
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}.")


def check_inputs(x: Tensor, h0: Tensor, input_weight: Tensor, bias: Tensor | None, n: int) -> None:
    """Raises ``ValueError`` unless x, h₀, M and b go with n features.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.shapes import check_inputs
        >>> check_inputs(torch.zeros(4, 2, 3), torch.zeros(2, 5), torch.zeros(5, 3), None, 5)
    """
    if x.dim() != 3:
        raise ValueError(f"x: expected 3 dimensions, got shape {tuple(x.shape)}.")
    check_shape("x", x, (*x.shape[:2], input_weight.shape[-1]))
    check_shape("h0", h0, (x.shape[1], n))
    check_shape("input_weight", input_weight, (n, x.shape[2]))
    if bias is not None:
        check_shape("bias", bias, (n,))


def check_dtypes(x: Tensor, **others: Tensor | None) -> None:
    """Raises ``TypeError`` unless x has real floating numbers, and the others the same dtype.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.shapes import check_dtypes
        >>> check_dtypes(torch.zeros(2), h0=torch.zeros(2, dtype=torch.float64))
        Traceback (most recent call last):
        TypeError: h0: expected the dtype of x, torch.float32, got torch.float64.
    """
    if not x.is_floating_point():
        raise TypeError(f"x: expected real floating numbers, got {x.dtype}.")
    for name, tensor in others.items():
        if tensor is not None and tensor.dtype != x.dtype:
            raise TypeError(f"{name}: expected the dtype of x, {x.dtype}, got {tensor.dtype}.")
