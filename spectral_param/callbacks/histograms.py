"""Handing vectors to loggers that draw histograms."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from torch import Tensor

MOST = 9e19  # where TensorBoard's last bin ends


def write_histograms(trainer: Trainer, vectors: dict[str, Tensor], step: int) -> None:
    """Writes each vector as a histogram to TensorBoard and Weights & Biases loggers; others are passed over.

    What no histogram has a place for, NaN, infinity and numbers as large, is left out, and a vector of nothing else.

    Args:
        trainer: whose loggers are meant.
        vectors: by name; of any shape.
        step: the x of the histograms.
    """
    placed = {name: vector[vector.abs() < MOST] for name, vector in vectors.items()}
    vectors = {name: vector for name, vector in placed.items() if len(vector)}
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            for name, vector in vectors.items():
                logger.experiment.add_histogram(name, vector, step)
        elif isinstance(logger, WandbLogger):
            import wandb  # there whenever its logger is

            drawn = {name: wandb.Histogram(vector.numpy()) for name, vector in vectors.items()}
            logger.log_metrics(drawn, step)
