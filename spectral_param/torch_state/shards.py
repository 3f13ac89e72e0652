"""Factors that ``fully_shard`` has spread over ranks: read whole, written by shards. All ranks have to take part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is a ``DTensor``, of which a rank holds only a part.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.shards import is_shard
        >>> is_shard(torch.ones(2))
        False
    """
    return hasattr(tensor, "full_tensor")


def whole(factor: Tensor) -> Tensor:
    """The factor itself, or a shard's whole tensor, gathered from all ranks; differentiable.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.shards import whole
        >>> whole(torch.ones(2))
        tensor([1., 1.])
    """
    sharded: Any = factor
    return sharded.full_tensor() if is_shard(factor) else factor


def own_part(factor: Tensor) -> Tensor:
    """The factor itself, or what this rank holds of a shard.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.shards import own_part
        >>> own_part(torch.ones(2))
        tensor([1., 1.])
    """
    sharded: Any = factor
    return sharded.to_local() if is_shard(factor) else factor


@torch.no_grad()
def write_(factor: Tensor, value: Tensor) -> None:
    """Copies a whole value into the factor, in place; each rank takes its own part.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.shards import write_
        >>> factor = torch.zeros(2)
        >>> write_(factor, torch.ones(2))
        >>> factor
        tensor([1., 1.])
    """
    factor.copy_(spread_as(factor, value))


def spread_as(factor: Tensor, value: Tensor) -> Tensor:
    """A whole value as the factor is spread, rank 0 handing out the parts; itself where that is done, or not needed.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.shards import spread_as
        >>> spread_as(torch.zeros(2), torch.ones(2))
        tensor([1., 1.])
    """
    if not is_shard(factor) or is_shard(value):
        return value
    from torch.distributed.tensor import distribute_tensor  # slow to import, and needed here alone

    sharded: Any = factor
    return distribute_tensor(value, sharded.device_mesh, sharded.placements)
