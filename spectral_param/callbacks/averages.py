"""Averages of weights that Lightning's callbacks keep."""

from __future__ import annotations

from collections.abc import Iterator

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from torch import nn


def averaging_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks of a Trainer that average weights."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set from outside
    return [callback for callback in callbacks if isinstance(callback, (StochasticWeightAveraging, WeightAveraging))]


def averaged_models(trainer: Trainer) -> Iterator[nn.Module]:
    """The averages that these callbacks keep, which begin as copies of the model from before training."""
    for callback in averaging_callbacks(trainer):
        if isinstance(average := getattr(callback, "_average_model", None), nn.Module):
            yield average
