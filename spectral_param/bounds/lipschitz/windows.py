"""What goes over an image window by window: convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.bounds.lipschitz.moved import Moved, Shape, Step
from spectral_param.bounds.norms import operator_norms, rounding, weight_in_evaluation
from spectral_param.functional.convolution.geometry import Geometry, geometry_of
from spectral_param.functional.convolution.gram import bound_everywhere
from spectral_param.functional.convolution.padding import circle, stretch
from spectral_param.parametrization.blocks import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.spectrum.operator import FEW, operator_norm_bound
from spectral_param.torch_state.private import ConvNd

_POOLED: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.MaxPool3d: 3,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AvgPool3d: 3,
    nn.LPPool1d: 1,
    nn.LPPool2d: 2,
    nn.LPPool3d: 3,
}
_ADAPTIVE: dict[type[nn.Module], int] = {
    nn.AdaptiveAvgPool1d: 1,
    nn.AdaptiveAvgPool2d: 2,
    nn.AdaptiveAvgPool3d: 3,
    nn.AdaptiveMaxPool1d: 1,
    nn.AdaptiveMaxPool2d: 2,
    nn.AdaptiveMaxPool3d: 3,
}


def convolution(module: ConvNd, value: Moved) -> Tensor:
    """By its frequencies, or for a registered kernel by its σ where that is less.

    On images of every size, where an example is known on those of its size.
    """
    geometry = geometry_of(module)
    weight = weight_in_evaluation(module)
    # A kernel's matrix is read by outputs; windows of a transposed one overlap by inputs: √(kh·kw) holds for both.
    overlap = math.sqrt(math.prod(geometry.kernel) if geometry.transposed else _overlap(geometry))
    if weight.is_complex():
        return torch.linalg.vector_norm(operator_norms(module)) * overlap * stretch(geometry)
    image = None if value.centre is None else tuple(value.centre.shape[-len(geometry.kernel) :])
    padded = stretch(geometry) if image is None else circle(geometry, geometry.sides(image))[1]
    bound = bound_everywhere(geometry.blocks(weight), geometry).to("cpu") * padded
    if padded > 1 and geometry.padding_mode == "circular" and tuple(map(sum, geometry.padding)) == geometry.reach:
        every = replace(geometry, stride=(1,) * len(geometry.stride))  # of whose windows those of a stride are some
        bound = torch.minimum(bound, bound_everywhere(geometry.blocks(weight), every).to("cpu"))
    if image is not None and math.prod(image) <= FEW:
        bound = torch.minimum(bound, operator_norm_bound(weight, geometry, image).to("cpu"))
    bound = bound + rounding(module) * overlap * padded
    if SVDParametrization.alone_on(module, "weight") is not None:
        norm = operator_norms(module)
        # Registered with chunks=groups, each group convolves channels of its own.
        kernel = norm.amax() if norm.dim() and len(norm) == module.groups else torch.linalg.vector_norm(norm)
        bound = torch.minimum(bound, kernel * overlap * padded)
    return bound


def pooling(module: nn.Module) -> Tensor:
    """The greatest, the mean or a norm of each window."""
    _check_values(module)
    geometry = _pooled(module)
    size = math.prod(geometry.kernel)
    factor = 1.0
    if isinstance(module, (nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)):
        power = float(module.norm_type)
        if power < 2 or power % 2 or module.ceil_mode:
            raise ValueError(
                f"module: expected {type(module).__name__} with an even norm_type and ceil_mode=False, where it is a "
                f"norm of each window, got {module}."
            )
    elif isinstance(module, (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)):
        factor = size / abs(getattr(module, "divisor_override", None) or size)
        if module.count_include_pad and not module.ceil_mode:  # all windows are alike: it is a convolution
            kernel = torch.full((1, 1, 1, *geometry.kernel), factor / size, dtype=torch.float64)
            return bound_everywhere(kernel, geometry)
    return torch.tensor(factor * math.sqrt(_overlap(geometry)), dtype=torch.float64)


def adaptive_pooling(module: nn.Module, value: Moved) -> Tensor:
    """Windows that follow from the image: where that is not known, from the image in which they overlap most."""
    _check_values(module)
    sides = _ADAPTIVE[next(kind for kind in type(module).__mro__ if kind in _ADAPTIVE)]
    outputs = _each(module.output_size, sides)
    image = (None,) * sides if value.centre is None else value.centre.shape[-sides:]
    is_mean = isinstance(module, (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d))
    copies = 1.0
    for m, n in zip(outputs, image, strict=True):
        if m == 1:
            copies *= 1 if n is None or not is_mean else 1 / n
        elif m is not None:  # of a side that is not pooled each pixel is a window
            copies *= m if n is None else _most_windows(m, n, is_mean)
    return torch.tensor(math.sqrt(copies) * (1 + 1e-12), dtype=torch.float64)


def shape_after_windows(module: Any, shape: Shape) -> Shape:
    """Of a convolution or a pooling with windows of one size."""
    geometry = geometry_of(module) if isinstance(module, ConvNd) else _pooled(module)
    each = zip(geometry.stride, geometry.padding, geometry.reach, geometry.output_padding, strict=True)
    steps: list[Step] = []
    for stride, padding, reach, more in each:
        grown = reach + more - sum(padding)
        if stride == 1:
            steps.append((1, grown if geometry.transposed else -grown, ""))
        else:
            how = "transposed" if geometry.transposed else "down"
            if getattr(module, "ceil_mode", False):  # where the last window may start goes by the padding itself
                how = f"up, from {padding}"
            steps.append((stride, grown, how))
    if isinstance(module, ConvNd):
        shape = shape.with_channels(module.in_channels, module.out_channels)
    return shape.with_sides(tuple(steps))


def _check_values(module: Any) -> None:
    if getattr(module, "return_indices", False):
        raise ValueError(f"module: expected {type(module).__name__} with return_indices=False, since indices jump.")


def _pooled(module: Any) -> Geometry:
    sides = _POOLED[next(kind for kind in type(module).__mro__ if kind in _POOLED)]
    kernel = _each(module.kernel_size, sides)
    return Geometry(
        kernel=kernel,
        stride=_each(module.stride, sides) if module.stride is not None else kernel,
        dilation=_each(getattr(module, "dilation", 1), sides),
        padding=tuple((p, p) for p in _each(getattr(module, "padding", 0), sides)),
        output_padding=(0,) * sides,
        padding_mode="zeros",
        groups=1,
        transposed=False,
    )


def _overlap(geometry: Geometry) -> int:
    """In how many windows one pixel can lie."""
    sides = zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True)
    return math.prod(math.ceil(k * math.gcd(s, d) / s) for k, s, d in sides)


def _most_windows(m: int, n: int, is_mean: bool) -> float:
    """In how many of m windows over n pixels one can lie, or of means the greatest sum of its weights."""
    count = [0.0] * n
    for i in range(m):
        start, end = i * n // m, math.ceil((i + 1) * n / m)
        for pixel in range(start, end):
            count[pixel] += 1 / (end - start) if is_mean else 1
    return max(count)


def _each(size: Any, sides: int) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, (tuple, list)) else (size,) * sides


RULES: dict[type[nn.Module], Callable[..., Tensor]] = {
    **dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS), convolution),
    **dict.fromkeys(_POOLED, pooling),
    **dict.fromkeys(_ADAPTIVE, adaptive_pooling),
}
WINDOWED = (*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS, *_POOLED)
