"""A convolution carried out, and the matrix that it is, entry by entry: exact for any padding, and for small images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional.convolution.geometry import Geometry, Side

MOST = 2**24  # entries of a matrix that is written out, 4096²

_CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSE = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def convolve(images: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """What the module makes of images (count, channels, sides…), but for the bias."""
    sides = len(geometry.kernel)
    if geometry.transposed:
        return _TRANSPOSE[sides - 1](
            images,
            weight,
            None,
            geometry.stride,
            tuple(low for low, _ in geometry.padding),
            geometry.output_padding,
            geometry.groups,
            geometry.dilation,
        )
    around = [pixels for pair in reversed(geometry.padding) for pixels in pair]
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    padded = images if geometry.pads_nothing else F.pad(images, around, mode=mode)
    return _CONVOLVE[sides - 1](padded, weight, None, geometry.stride, 0, geometry.dilation, geometry.groups)


def entries(blocks: Tensor, sides: Sequence[Side]) -> int:
    """How many entries the matrices of all groups have."""
    groups, rows, columns = blocks.shape[:3]
    return groups * rows * columns * math.prod(side.n * side.m for side in sides)


def written_out(weight: Tensor, geometry: Geometry, image: Sequence[int]) -> Tensor:
    """The matrices of the groups, each from the channels and pixels of an image to those that come out.

    Args:
        weight: as the module has it.
        geometry: of the module.
        image: sides of what the module is given.

    Returns:
        (groups, channels out · pixels out, channels in · pixels in); differentiable.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.functional.convolution.written_out import written_out
        >>> conv = nn.Conv1d(1, 1, 2, padding=1)
        >>> written_out(torch.tensor([[[1.0, 2.0]]]), geometry_of(conv), (2,))
        tensor([[[2., 0.],
                 [1., 2.],
                 [0., 1.]]])
    """
    channels = weight.shape[0] // geometry.groups if geometry.transposed else weight.shape[1]
    size = channels * math.prod(image)
    basis = torch.eye(size, dtype=weight.dtype, device=weight.device).reshape(size, channels, *image)
    images = basis.repeat(1, geometry.groups, *(1 for _ in image))
    return convolve(images, weight, geometry).reshape(size, geometry.groups, -1).permute(1, 2, 0)
