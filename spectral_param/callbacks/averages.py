"""Averages of weights that Lightning's callbacks keep."""

from __future__ import annotations

from collections.abc import Iterator

from lightning.pytorch import Callback, Trainer
from torch import nn

from spectral_param.callbacks.private import AVERAGING, average_of, callbacks_of


def averaging_callbacks(trainer: Trainer) -> list[Callback]:
    """The callbacks of a Trainer that average weights."""
    return callbacks_of(trainer, *AVERAGING)


def averaged_models(trainer: Trainer) -> Iterator[nn.Module]:
    """The averages that these callbacks keep, which begin as copies of the model from before training."""
    for callback in averaging_callbacks(trainer):
        if (average := average_of(callback)) is not None:
            yield average
