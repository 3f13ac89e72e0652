"""What Lightning has and promises nobody, from 2.5 to 2.6, in one file but for methods that are overridden."""

from __future__ import annotations

from typing import Any, TypeVar

from lightning.pytorch import Callback, Trainer, callbacks
from torch import nn
from torch.optim.swa_utils import AveragedModel

since_2_6 = getattr(callbacks, "WeightAveraging", None)
AVERAGING: tuple[type[Callback], ...] = tuple(filter(None, (callbacks.StochasticWeightAveraging, since_2_6)))
"""Lightning's callbacks that average weights."""
CallbackT = TypeVar("CallbackT")


def callbacks_of(trainer: Trainer, *kinds: type[CallbackT]) -> list[CallbackT]:
    """The callbacks of a Trainer that are of some kind, in their order."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set from outside
    return [callback for callback in callbacks if isinstance(callback, kinds)]


def current_step(trainer: Trainer) -> int:
    """The step counter that is handed to loggers in training."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def logs_now(trainer: Trainer) -> bool:
    """Whether this step is one at which numbers go to loggers."""
    return trainer._logger_connector.should_update_logs


def average_of(callback: Callback) -> nn.Module | None:
    """The average that a callback keeps of the model, once it does; its weights have the names of the model's."""
    average: Any = getattr(callback, "_average_model", None)
    average = average.module if isinstance(average, AveragedModel) else average
    return average if isinstance(average, nn.Module) else None


def is_compiled(model: nn.Module) -> bool:
    """Whether a model was handed to the Trainer as what ``torch.compile`` made of it."""
    return getattr(model, "_compiler_ctx", None) is not None
