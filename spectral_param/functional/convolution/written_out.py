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
    return _CONVOLVE[sides - 1](
        _padded(images, geometry), weight, None, geometry.stride, 0, geometry.dilation, geometry.groups
    )


def adjoint(made: Tensor, weight: Tensor, geometry: Geometry, image: Sequence[int]) -> Tensor:
    """The adjoint of :func:`convolve`, from (count, channels, sides…) of what is made to those of the images.

    Args:
        made: of the shape of what becomes of an image.
        weight: as the module has it.
        geometry: of the module.
        image: sides of what the module is given.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.functional.convolution.written_out import adjoint
        >>> adjoint(torch.ones(1, 1, 2), torch.tensor([[[1.0, 2.0]]]), geometry_of(nn.Conv1d(1, 1, 2)), (3,))
        tensor([[[1., 3., 2.]]])
    """
    sides, groups, dilation = len(geometry.kernel), geometry.groups, geometry.dilation
    low = [before for before, _ in geometry.padding]
    if geometry.transposed:
        back = _CONVOLVE[sides - 1](made, weight, None, geometry.stride, low, dilation, groups)
        return _cut(back, [0] * sides, image)
    zeros = geometry.padding_mode == "zeros"
    cut = low if zeros and all(before == after for before, after in geometry.padding) else [0] * sides
    sizes = [n + sum(padding) - 2 * c for n, padding, c in zip(image, geometry.padding, cut, strict=True)]
    each = zip(sizes, geometry.stride, geometry.reach, cut, made.shape[2:], strict=True)
    more = [n - ((m - 1) * stride + reach + 1 - 2 * c) for n, stride, reach, c, m in each]  # read by no window
    back = _TRANSPOSE[sides - 1](made, weight, None, geometry.stride, cut, more, groups, dilation)
    if zeros:
        return _cut(back, [before - c for before, c in zip(low, cut, strict=True)], image)
    with torch.enable_grad():
        images = torch.zeros(*back.shape[:2], *image, dtype=back.dtype, device=back.device, requires_grad=True)
        return torch.autograd.grad(_padded(images, geometry), images, back)[0]


def _cut(images: Tensor, low: Sequence[int], sizes: Sequence[int]) -> Tensor:
    for side, (start, size) in enumerate(zip(low, sizes, strict=True)):
        images = images.narrow(2 + side, start, size)
    return images


def _padded(images: Tensor, geometry: Geometry) -> Tensor:
    if geometry.pads_nothing:
        return images.view_as(images)
    around = [pixels for pair in reversed(geometry.padding) for pixels in pair]
    return F.pad(images, around, mode="constant" if geometry.padding_mode == "zeros" else geometry.padding_mode)


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
