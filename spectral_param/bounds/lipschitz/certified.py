"""Lipschitz constants of the layers that certified networks are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.bounds.lipschitz.moved import Moved
from spectral_param.bounds.lipschitz.windows import convolution
from spectral_param.bounds.norms import operator_norm
from spectral_param.nn.centering import Centering
from spectral_param.nn.group_sort import GroupSort, MaxMin
from spectral_param.nn.svd_conv import SVDConv1d, SVDConv2d, SVDConv3d
from spectral_param.parametrization.shifted import ShiftedParametrization
from spectral_param.parametrization.svd import SVDParametrization

_PLAIN: dict[type[nn.Module], type[nn.Module]] = {SVDConv1d: nn.Conv1d, SVDConv2d: nn.Conv2d, SVDConv3d: nn.Conv3d}


def _svd_convolution(module: SVDConv1d | SVDConv2d | SVDConv3d, value: Moved) -> Tensor:
    """max|σ|, also for zero padding; a kernel that was folded goes by the rule of torch's layer."""
    if not isinstance(SVDParametrization.alone_on(module), ShiftedParametrization):
        return convolution(_as_torchs(module), value)
    if module.padding_mode not in ("circular", "zeros"):
        raise ValueError(f"module: expected padding with zeros or circular, got {module.padding_mode!r}.")
    return operator_norm(module)


def _as_torchs(module: SVDConv1d | SVDConv2d | SVDConv3d) -> Any:
    """The same kernel in a layer of torch's own."""
    if "weight" not in module._parameters:
        raise TypeError(f"module: expected {type(module).__name__} with a kernel of its own, got one that was changed.")
    cls: Any = next(plain for own, plain in _PLAIN.items() if isinstance(module, own))
    sizes = module.kernel_size, module.stride, module.padding
    plain: nn.Module = cls(
        module.in_channels, module.out_channels, *sizes, bias=False, padding_mode=module.padding_mode, device="meta"
    )
    plain.weight = module.weight
    return plain


def _one(module: nn.Module) -> Tensor:
    return torch.ones((), dtype=torch.float64)


CONVOLUTIONS: dict[Any, Callable[..., Any]] = dict.fromkeys(_PLAIN, _svd_convolution)
SHAPE_KEEPING: dict[Any, Callable[..., Any]] = dict.fromkeys((GroupSort, MaxMin, Centering), _one)
