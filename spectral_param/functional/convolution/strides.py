"""Kernels of strided convolutions: what down-samples an image without loss, taking pixels for channels."""

from __future__ import annotations

from torch import Tensor


def spread_over_pixels(kernel: Tensor, stride: int) -> Tensor:
    """The strided kernel that does what a kernel does to an image whose pixels were taken for channels.

    ``conv2d(pixel_unshuffle(x, s), kernel)`` is ``conv2d(x, spread_over_pixels(kernel, s), stride=s)``, in as many
    dimensions as there are.

    Args:
        kernel: (p, q · sᵈ, k, …, k).
        stride: s.

    Returns:
        (p, q, s k, …, s k).

    Example:
        >>> import torch
        >>> from spectral_param.functional.convolution.strides import spread_over_pixels
        >>> spread_over_pixels(torch.tensor([[[1.0], [2.0], [3.0]]]), 3)
        tensor([[[1., 2., 3.]]])
    """
    if stride == 1:
        return kernel
    p, channels, *sizes = kernel.shape
    d = len(sizes)
    apart = kernel.reshape(p, channels // stride**d, *(stride,) * d, *sizes)
    order = [0, 1] + [axis for i in range(d) for axis in (2 + d + i, 2 + i)]
    return apart.permute(order).reshape(p, -1, *(stride * size for size in sizes))
