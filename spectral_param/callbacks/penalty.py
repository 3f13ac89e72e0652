"""A soft pull on the singular values while a model trains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from spectral_param.callbacks.logging import write
from spectral_param.callbacks.patterns import warn_unmatched
from spectral_param.callbacks.private import logs_now
from spectral_param.callbacks.sharded_sigma import trained_singular_values
from spectral_param.parametrization.stacked import check_alone
from spectral_param.sigma import SigmaMap
from spectral_param.sigma.level import finite, number
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights
from spectral_param.torch_state.precision import wide


class SpectralPenalty(Callback):
    """Adds the gradient of ``weight · Σ(|σ| - center)²`` before each optimizer step, as if it were part of the loss.

    It is added once a step, after gradients are unscaled, averaged over ranks and accumulated, and before they are
    clipped. The loss that ``training_step`` returns stays as it is; the penalty is logged as ``spectral_penalty`` every
    ``log_every_n_steps``. In manual optimization it is added after clipping by hand, in ``optimizer.step()``.

    Args:
        weight: factor of the penalty, positive.
        center: where singular values are pulled to.
        weights: name patterns of the weights in SVD form that feel it; those with fixed σ do not.

    Raises:
        TypeError: if ``weight`` or ``center`` is no number.
        ValueError: if ``weight`` is not positive and finite, or ``center`` not finite; at fit start if another
            parametrization stands on top of an SVD.

    Warns:
        UserWarning: at fit start, of patterns that match nothing, and of a model with nothing to penalize.

    Example:
        >>> from spectral_param.callbacks import SpectralPenalty
        >>> SpectralPenalty(0.01, weights="encoder.*").center
        1.0
    """

    def __init__(self, weight: float, center: float = 1.0, *, weights: str | Sequence[str] = "*") -> None:
        self.weight = number("weight", weight)
        self.center = finite("center", center)
        if not 0 < weight < math.inf:
            raise ValueError(f"weight: expected a positive, finite number, got {weight}.")
        self.weights = as_patterns("weights", weights)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says which patterns match nothing, and refuses weights that have other σ than their SVD."""
        penalized = parametrized_weights(pl_module, self.weights)
        warn_unmatched("weights", self.weights, penalized, "weight in SVD form")
        for parametrization in penalized.values():
            check_alone(parametrization)
        if "*" in self.weights and not penalized:
            rank_zero_warn("SpectralPenalty has nothing to penalize: no weight is in SVD form.")

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Adds the gradient to those that the optimizer is about to use."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        scale = self.weight * _scale_left(trainer, optimizer)
        for parametrization in parametrized_weights(pl_module, self.weights).values():
            raw = parametrization.raw_sigma
            if raw is not None and raw.requires_grad and id(raw) in held:
                gradient = penalty_gradient(parametrization.sigma_map, raw, self.center) * scale
                raw.grad = gradient if raw.grad is None else raw.grad + gradient
        if logs_now(trainer):
            write(trainer, {"spectral_penalty": self.value(trainer, pl_module)})

    def value(self, trainer: Trainer, pl_module: LightningModule) -> float:
        """The penalty as it stands, a collective where the model is sharded."""
        found = parametrized_weights(pl_module, self.weights).values()
        sigmas = [trained_singular_values(trainer, parametrization) for parametrization in found]
        return self.weight * sum((sigma.double() - self.center).square().sum().item() for sigma in sigmas)


def penalty_gradient(sigma_map: SigmaMap, raw: Tensor, center: float) -> Tensor:
    """Derivative of Σ(|σ| - center)² by the raw numbers of a σ map, elementwise and so right on a shard."""
    leaf = raw.detach().requires_grad_()
    with torch.enable_grad():
        sigma = sigma_map(wide(leaf))
    value = sigma.detach()
    (gradient,) = torch.autograd.grad(sigma, leaf, 2 * (value - center * value.sign()))
    return gradient


def _scale_left(trainer: Trainer, optimizer: Optimizer) -> float:
    """What gradients are still multiplied by: fused optimizers unscale them inside their step."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    unscales = getattr(optimizer, "_step_supports_amp_scaling", False)
    return scaler.get_scale() if scaler is not None and unscales else 1.0
