"""What Lightning has and promises nobody, from 2.5 to 2.6, in one file but for methods that are overridden."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, Trainer, callbacks
from torch import nn

since_2_6 = getattr(callbacks, "WeightAveraging", None)
AVERAGING: tuple[type[Callback], ...] = tuple(filter(None, (callbacks.StochasticWeightAveraging, since_2_6)))
"""Lightning's callbacks that average weights."""


def current_step(trainer: Trainer) -> int:
    """The step counter that is handed to loggers in training."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def logs_now(trainer: Trainer) -> bool:
    """Whether this step is one at which numbers go to loggers."""
    return trainer._logger_connector.should_update_logs


def average_of(callback: Callback) -> nn.Module | None:
    """The average that a callback keeps of the model, once it does."""
    average: Any = getattr(callback, "_average_model", None)
    return average if isinstance(average, nn.Module) else None


def is_compiled(model: nn.Module) -> bool:
    """Whether a model was handed to the Trainer as what ``torch.compile`` made of it."""
    return getattr(model, "_compiler_ctx", None) is not None
