"""Reading singular values of a model in training: whole on every rank, however the model is sharded."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor

from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.spectrum.whole_sigma import sigma_in_blocks
from spectral_param.torch_state.shards import whole


def has_flat_shards(trainer: Trainer) -> bool:
    """Whether parameters are held as flat shards that have lost their shape, as ``FSDPStrategy`` does."""
    return isinstance(trainer.strategy, FSDPStrategy)


def trained_singular_values(trainer: Trainer, parametrization: SVDParametrization) -> Tensor:
    """|σ| of a weight in SVD form; see :func:`~spectral_param.spectrum.whole_sigma.sigma_in_blocks`."""
    return sigma_in_blocks(parametrization, partial(_whole, trainer))


def _whole(trainer: Trainer, local: Tensor) -> Tensor:
    """The whole tensor from this rank's part of it."""
    if not has_flat_shards(trainer):
        return whole(local)
    root: Any = trainer.strategy.model
    group = root.process_group
    parts: list[Tensor] = [torch.empty(0)] * dist.get_world_size(group)
    dist.all_gather_object(parts, local.cpu(), group=group)
    return torch.cat(parts)
