"""Numbers to loggers, at the step that Lightning counts by."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer


def current_step(trainer: Trainer) -> int:
    """The step counter that Lightning hands to loggers in training."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def write(trainer: Trainer, numbers: dict[str, float]) -> None:
    """Writes numbers to every logger at the present step, and where other callbacks look for metrics."""
    trainer.callback_metrics.update({name: torch.tensor(number) for name, number in numbers.items()})
    for logger in trainer.loggers:
        logger.log_metrics(numbers, step=current_step(trainer))
