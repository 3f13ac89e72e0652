"""Normalisation: by statistics that are kept, or by those of the input itself.

Note [Steepness of a normalisation]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
For c, of d entries, c / s with s = √(‖c‖² / d + ε) has the Jacobian (I - c cᵀ / (d s²)) / s, whose eigenvalues are
between 0 and 1 / s. Where c is a sample (RMSNorm), or less its mean, which is a projection (LayerNorm, and GroupNorm
and InstanceNorm group by group), that is 1 / √ε at most: large, and reached at a sample that is constant. Within a
distance r of a centre with ‖c‖ = ℓ it is 1 / √(max(ℓ - r, 0)² / d + ε).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.bounds.lipschitz.moved import Moved
from spectral_param.torch_state.private import BatchNorm


def batch_norm(module: BatchNorm) -> Tensor:
    """By the statistics that are kept."""
    if module.running_mean is None or module.running_var is None:
        raise ValueError(f"module: expected running statistics in {type(module).__name__}, got none.")
    return (module.running_var.to("cpu", torch.float64) + module.eps).rsqrt().mul(_scale(module)).amax()


def layer_norm(module: Any, value: Moved) -> Tensor:
    """LayerNorm and RMSNorm, over the last dimensions."""
    eps = torch.finfo(torch.float64).eps if module.eps is None else module.eps
    if module.eps is None:  # RMSNorm takes that of the input's dtype, which may be narrow
        eps = torch.finfo(torch.float64 if value.centre is None else value.centre.dtype).eps
    rows = None
    if value.centre is not None:
        rows = value.centre.flatten(-len(module.normalized_shape))
    return _steepest(module, eps, rows, value.reach, is_centred=isinstance(module, nn.LayerNorm))


def group_norm(module: nn.GroupNorm, value: Moved) -> Tensor:
    """Over the channels and pixels of each group."""
    rows = None if value.centre is None else value.centre.reshape(len(value.centre), module.num_groups, -1)
    return _steepest(module, module.eps, rows, value.reach, is_centred=True)


def instance_norm(module: Any, value: Moved) -> Tensor:
    """Over the pixels of each channel, or by statistics that are kept."""
    if module.track_running_stats:
        return batch_norm(module)
    rows = None if value.centre is None else value.centre.flatten(2)
    return _steepest(module, module.eps, rows, value.reach, is_centred=True)


def _steepest(module: Any, eps: float, rows: Tensor | None, reach: float, *, is_centred: bool) -> Tensor:
    if not eps > 0:
        raise ValueError(f"module: expected {type(module).__name__} with an eps above 0, got {eps}.")
    squares = 0.0
    if rows is not None:
        rows = rows.to("cpu", torch.float64)
        rows = rows - rows.mean(-1, keepdim=True) if is_centred else rows
        squares = float((torch.linalg.vector_norm(rows, dim=-1).amin() - reach).clamp_min(0)) ** 2 / rows.shape[-1]
    return _scale(module).amax() * (squares + eps) ** -0.5


def _scale(module: Any) -> Tensor:
    if module.weight is None:
        return torch.ones((), dtype=torch.float64)
    scale: Tensor = module.weight.to("cpu", torch.float64).abs()
    return scale


_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
RULES: dict[type[nn.Module], Callable[..., Tensor]] = {
    **dict.fromkeys(_BATCH, batch_norm),
    **dict.fromkeys(_INSTANCE, instance_norm),
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: layer_norm,
    nn.GroupNorm: group_norm,
}
