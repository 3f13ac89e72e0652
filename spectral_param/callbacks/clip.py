"""Holding singular values in a range while a model trains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spectral_param.callbacks.averages import (
    averaged_models,
    averages_itself,
    averaging_callbacks,
    hold_,
    share_of_average,
)
from spectral_param.callbacks.patterns import warn_unmatched, warn_unpruned, warn_untrained
from spectral_param.callbacks.sharded_sigma import has_flat_shards
from spectral_param.parametrization.blocks import Matrices, matrices_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import clipping
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights, plain_weights
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.shards import is_shard


class SpectralClip(Callback):
    """Moves singular values into [min, max], before training and after every step of every optimizer.

    It hooks the optimizers themselves, so that nothing in between sees a σ outside: not another callback, a checkpoint,
    an averaged model, nor the second step of a batch in manual optimization. Each rank clips what it holds,
    elementwise, without communication. For ``Unconstrained`` σ is clamped; for other maps the raw number is moved to
    where the map gives the nearest σ. With ``min`` above 0 a σ that a step takes through 0 returns to the edge from
    which it came, so that averages of steps (``EMAWeightAveraging``, ``StochasticWeightAveraging``) are in range as
    well; schedule-free optimizers have their averaged point clipped beside the present one. Adam's moments are left
    alone: they belong to a raw number that moves by less than the step that has just been taken.

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
        ValueError: if not 0 ≤ min ≤ max; at fit start if a σ map reaches no value in [min, max], for ``project_dense``
            or ``renormalize`` on sharded parameters, of which no rank holds a whole column, for ``project_dense`` with
            ``min`` above 0 where weights are averaged, and for optimizers that average in a way that is not known.

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
        self._check_averages(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clips what training begins with, averages too, and hooks the optimizers."""
        warn_untrained(pl_module, trainer.optimizers)
        warn_unpruned(trainer, pl_module)
        trained, plain = self._chosen(pl_module)
        optimizers = trainer.optimizers
        sides: dict[str, Tensor] = {}

        def before(*step: Any) -> None:
            if self.min > 0:
                raws = {name: raw for name, p in trained.items() if (raw := p.raw_sigma) is not None}
                sides.update({name: clipping.side_of(trained[name].sigma_map, raw) for name, raw in raws.items()})

        def clip(*step: Any) -> None:
            for name, parametrization in trained.items():
                self._clip(parametrization, optimizers, sides.get(name))
            for module, weight in plain.values():
                project = partial(project_, weight, matrices_of(module, weight), self.min, self.max)
                hold_(weight, optimizers, project)
            sides.clear()

        clip()
        for average in averaged_models(trainer):
            for parametrization in self._chosen(average)[0].values():
                parametrization.clip_(self.min, self.max)
        self._unhook()
        for optimizer in optimizers:
            self._handles += [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(clip)]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def _clip(self, parametrization: SVDParametrization, optimizers: Sequence[Optimizer], side: Tensor | None) -> None:
        """Clips a weight in SVD form after a step, σ on the side where it was before the step."""
        raw = parametrization.raw_sigma

        def clip_() -> None:
            if raw is not None and side is not None:
                raw.copy_(clipping.returned(parametrization.sigma_map, raw, side, self.min))
            parametrization.clip_(self.min, self.max)

        if raw is None:
            clip_()
        else:
            hold_(raw, optimizers, clip_)
        if self.renormalize:
            parametrization.renormalize_()

    def _check_averages(self, trainer: Trainer) -> None:
        """Refuses averages that would leave the range."""
        averaging = [*averaging_callbacks(trainer), *filter(averages_itself, trainer.optimizers)]
        if self.project_dense and self.min > 0 and averaging:
            raise ValueError(
                f"project_dense: expected min=0 beside {type(averaging[0]).__name__}, whose averages of plain weights "
                "can have any smaller σ; register these weights, or leave the averaging."
            )
        for optimizer in filter(averages_itself, trainer.optimizers):
            name = type(optimizer).__name__
            if any(share_of_average(group) is None for group in optimizer.param_groups):
                raise ValueError(
                    f"SpectralClip: expected an optimizer that says how it averages, got {name}; give the weights a "
                    "σ map with the range, such as Interval(min, max), or take another optimizer."
                )
            if self.renormalize:
                raise ValueError(f"renormalize: expected False beside {name}, which averages reflectors of any length.")

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
