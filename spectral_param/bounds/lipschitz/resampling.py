"""What moves the pixels of an image or copies them: flattening, shuffling, padding, upsampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param.bounds.lipschitz.moved import Moved
from spectral_param.functional.convolution.padding import most_copies, most_copies_of_any

_MOVES = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)
_PADS: dict[str, tuple[type[nn.Module], ...]] = {
    "zeros": (
        nn.ZeroPad1d,
        nn.ZeroPad2d,
        nn.ZeroPad3d,
        nn.ConstantPad1d,
        nn.ConstantPad2d,
        nn.ConstantPad3d,
    ),
    "reflect": (nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    "replicate": (nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    "circular": (nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
}


def _moves(module: nn.Module) -> Tensor:
    return torch.ones((), dtype=torch.float64)


def _padding(module: Any, value: Moved) -> Tensor:
    mode = next(mode for mode, kinds in _PADS.items() if isinstance(module, kinds))
    copies = 1
    if mode != "zeros":
        pairs = list(zip(module.padding[::2], module.padding[1::2], strict=True))  # the last side first
        for place, (low, high) in enumerate(pairs, start=1):
            low, high = max(low, 0), max(high, 0)
            if value.centre is None:
                copies *= most_copies_of_any(mode, low, high)
            else:
                copies *= most_copies(mode, value.centre.shape[-place], low, high)
    return torch.tensor(math.sqrt(copies), dtype=torch.float64)


def upsampling(module: nn.Upsample, value: Moved) -> Tensor:
    """Of each side the norm of the matrix that it is, all modes being one along each side after another."""
    scales = module.scale_factor
    if value.centre is not None:
        before = value.centre.shape[2:]
        norms = [_norm_along(module, side, before) for side in range(len(before))]
        return torch.tensor(math.prod(norms) * (1 + 1e-6), dtype=torch.float64)
    if isinstance(module, nn.UpsamplingNearest2d) and isinstance(scales, float):
        scales = (scales, scales)
    if module.mode != "nearest" or not isinstance(scales, tuple):
        raise ValueError(
            f"module: expected Upsample with mode='nearest' and a scale_factor for each side, or around=, an example "
            f"of the input, got {module}."
        )
    return torch.tensor(math.sqrt(math.prod(math.ceil(scale) for scale in scales)), dtype=torch.float64)


def _norm_along(module: nn.Upsample, side: int, before: torch.Size) -> float:
    """Of the matrix along one side, from what becomes of each of its pixels on an image that is thin elsewhere."""
    scales = module.scale_factor if isinstance(module.scale_factor, tuple) else (module.scale_factor,) * len(before)
    thin = [1 if scale is None else math.ceil(1 / scale) for scale in scales]
    thin[side] = 1
    shape = [before[side] if i == side else 1 for i in range(len(before))]
    basis = torch.eye(before[side], dtype=torch.float64).reshape(-1, 1, *shape).repeat(1, 1, *thin)
    made = F.interpolate(
        basis,
        module.size,
        module.scale_factor,
        module.mode,
        module.align_corners,
        module.recompute_scale_factor,
    )
    first = [slice(None) if i == side else 0 for i in range(len(before))]
    return float(torch.linalg.matrix_norm(made[(slice(None), 0, *first)], 2))


RULES: dict[type[nn.Module], Callable[..., Tensor]] = {
    **dict.fromkeys(_MOVES, _moves),
    **dict.fromkeys((kind for kinds in _PADS.values() for kind in kinds), _padding),
    nn.Upsample: upsampling,
}
