"""Holding singular values in a range while a model trains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from spectral_param.callbacks.patterns import (
    as_patterns,
    parametrized_weights,
    plain_weights,
    warn_unmatched,
    warn_untrained,
)
from spectral_param.callbacks.sharded_sigma import has_flat_shards
from spectral_param.parametrization.blocks import Matrices, matrices_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.shards import is_shard


class SpectralClip(Callback):
    """Moves singular values into [min, max], before training and after every step of every optimizer.

    It hooks the optimizers themselves, so that nothing in between sees a σ outside: not another callback, a checkpoint,
    an averaged model, nor the second step of a batch in manual optimization. Each rank clips what it holds,
    elementwise, without communication. For ``Unconstrained`` σ is clamped and keeps its sign; for other maps the raw
    number is moved to where the map gives the nearest σ. Adam's moments are left alone: they belong to a raw number
    that moves by less than the step that has just been taken.

    Args:
        min: the least singular value to leave, at least 0.
        max: the greatest.
        weights: name patterns of the weights to hold.
        project_dense: holds the plain weights that ``weights`` names as well, read as
            :func:`~spectral_param.singular_values` reads them: their SVD is clipped, at the cost of a
            ``torch.linalg.svd`` of each a step.
        renormalize: also gives reflectors back their unit length after each step. W stays as it is but for
            rounding (1e-6). Moments are left alone: a gradient is orthogonal to its reflector, so one
            step changes the length in second order only, by less than the noise of the moments.

    Raises:
        ValueError: if not 0 ≤ min ≤ max; at fit start if a σ map reaches no value in [min, max], or for
            ``project_dense`` or ``renormalize`` on sharded parameters, of which no rank holds a whole column.

    Warns:
        UserWarning: at fit start, of patterns that match nothing and of weights whose factors no optimizer holds.

    Example:
        >>> from spectral_param.callbacks import SpectralClip
        >>> SpectralClip(0.9, 1.1, weights="rnn.*").max
        1.1
    """

    def __init__(
        self,
        min: float = 0.0,
        max: float = math.inf,
        *,
        weights: str | Sequence[str] = "*",
        project_dense: bool = False,
        renormalize: bool = False,
    ) -> None:
        if not 0 <= min <= max:
            raise ValueError(f"min, max: expected 0 <= min <= max, got {min} and {max}.")
        self.min = min
        self.max = max
        self.weights = as_patterns("weights", weights)
        self.project_dense = project_dense
        self.renormalize = renormalize
        self._handles: list[RemovableHandle] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks that what is asked can be done, before anything is trained."""
        trained, plain = self._chosen(pl_module)
        warn_unmatched("weights", self.weights, [*trained, *plain], "weight to clip")
        for parametrization in trained.values():
            parametrization.check_clip(self.min, self.max)
        for option, asked in (("project_dense", self.project_dense), ("renormalize", self.renormalize)):
            if asked and (has_flat_shards(trainer) or any(map(is_shard, pl_module.parameters()))):
                raise ValueError(
                    f"{option}: expected False for a sharded model, no rank of which holds a whole column."
                )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clips what training begins with, and hooks the optimizers."""
        warn_untrained(pl_module, trainer.optimizers)
        trained, plain = self._chosen(pl_module)

        def clip(*step: Any) -> None:
            for parametrization in trained.values():
                parametrization.clip_(self.min, self.max)
                if self.renormalize:
                    parametrization.renormalize_()
            for module, weight in plain.values():
                project_(weight, matrices_of(module, weight), self.min, self.max)

        clip()
        self._unhook()
        self._handles = [optimizer.register_step_post_hook(clip) for optimizer in trainer.optimizers]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def _chosen(
        self, model: nn.Module
    ) -> tuple[dict[str, SVDParametrization], dict[str, tuple[nn.Module, nn.Parameter]]]:
        plain = plain_weights(model, self.weights) if self.project_dense else {}
        return parametrized_weights(model, self.weights), plain

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []


@torch.no_grad()
def project_(weight: Tensor, matrices: Matrices, min: float, max: float) -> None:
    """Moves the singular values of a plain weight into [min, max], in place: the nearest such weight.

    What is not finite has none and stays as it is.

    Args:
        weight: of the shape that ``matrices`` is for.
        matrices: how it is read.
        min: the least singular value to leave.
        max: the greatest.
    """
    if not weight.isfinite().all():
        return
    u, sigma, vh = torch.linalg.svd(matrices.of(wide(weight)), full_matrices=False)
    clipped = sigma.clamp(min, max)
    if not torch.equal(clipped, sigma):
        weight.copy_(matrices.to_weight((u * clipped.unsqueeze(-2)) @ vh))
