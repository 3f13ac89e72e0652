"""The transpose of a convolution with circular padding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_TRANSPOSES = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def circular_transpose(input: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    """Applies the transpose of ``x ↦ conv(pad(x), kernel, stride)``, x padded around by ``(k - stride) / 2``.

    Args:
        input: (N, p, …) with d dimensions of an image.
        kernel: (p, q, k, …, k), k an odd multiple of the stride.
        stride: the same along all axes.

    Returns:
        (N, q, …), of images ``stride`` times as large.

    Example:
        >>> import torch
        >>> from spectral_param.functional.convolution.circular_transpose import circular_transpose
        >>> circular_transpose(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]), torch.tensor([[[1.0, 2.0, 3.0]]]))
        tensor([[[2., 3., 0., 1.]]])
    """
    output: Tensor = _TRANSPOSES[input.dim() - 2](input, kernel, stride=stride)
    border = (kernel.shape[-1] - stride) // 2
    for axis in range(2, output.dim()) if border else ():
        before, middle, after = output.split([border, output.shape[axis] - 2 * border, border], axis)
        nothing = torch.zeros_like(middle.narrow(axis, 0, middle.shape[axis] - border))
        output = middle + torch.cat([nothing, before], axis) + torch.cat([after, nothing], axis)
    return output
