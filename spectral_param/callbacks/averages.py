"""Weights that training does not step on but that are evaluated: averages kept by callbacks and by optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import Tensor, nn
from torch.optim import Optimizer


def averaging_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks of a Trainer that average weights."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set from outside
    return [callback for callback in callbacks if isinstance(callback, (StochasticWeightAveraging, WeightAveraging))]


def averaged_models(trainer: Trainer) -> Iterator[nn.Module]:
    """The averages that these callbacks keep, which begin as copies of the model from before training."""
    for callback in averaging_callbacks(trainer):
        if isinstance(average := getattr(callback, "_average_model", None), nn.Module):
            yield average


def averages_itself(optimizer: Optimizer) -> bool:
    """Whether an optimizer is schedule-free: steps at one point, and is put in another one for evaluation."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def share_of_average(group: dict[str, Any]) -> float | None:
    """β of a group of a schedule-free optimizer, which steps from y = (1 - β) z + β x; ``None`` where it says none.

    Example:
        >>> from spectral_param.callbacks.averages import share_of_average
        >>> share_of_average({"params": [], "train_mode": True, "betas": (0.9, 0.999)}), share_of_average({"lr": 0.1})
        (0.9, None)
    """
    if "train_mode" not in group:
        return None
    return group["betas"][0] if "betas" in group else group.get("momentum")


@torch.no_grad()
def hold_(parameter: Tensor, optimizers: Iterable[Optimizer], clip_: Callable[[], None]) -> None:
    """Clips a parameter in place, and with a schedule-free optimizer the average x and the base z that it lies between.

    What is clipped to is an interval of raw numbers, or a ball, so that y between x and z is inside as well.

    Args:
        parameter: y where its optimizer trains, x where it has been put into evaluation.
        optimizers: those of the training, one of which may hold it.
        clip_: moves whatever the parameter holds into range, in place.
    """
    for optimizer in filter(averages_itself, optimizers):
        for group in optimizer.param_groups:
            beta, z = share_of_average(group), optimizer.state.get(parameter, {}).get("z")
            if beta is None or z is None or not any(held is parameter for held in group["params"]):
                continue
            x = parameter.lerp(z, 1 - 1 / beta) if group["train_mode"] else parameter.clone()
            parameter.copy_(z)
            clip_()
            z.copy_(parameter)
            parameter.copy_(x)
            clip_()
            if group["train_mode"]:
                parameter.lerp_(z, 1 - beta)
            return
    clip_()
