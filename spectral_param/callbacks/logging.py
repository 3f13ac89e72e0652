"""Numbers to loggers, at the step that Lightning counts by."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer

from spectral_param.callbacks.private import current_step


def write(trainer: Trainer, numbers: dict[str, float]) -> None:
    """Writes numbers to every logger at the present step, and where other callbacks look for metrics."""
    trainer.callback_metrics.update({name: torch.tensor(number) for name, number in numbers.items()})
    for logger in trainer.loggers:
        logger.log_metrics(numbers, step=current_step(trainer))
