"""The page about a run at the end of its training, and its pictures in loggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info

from spectral_param.report.run import Run


def publish(trainer: Trainer, model: LightningModule, states: Iterable[Mapping[str, Any]], folder: Path) -> None:
    """Writes the page about a run, and hands its pictures to loggers that take any.

    Args:
        trainer: at the end of fit; on rank zero alone.
        model: whose hyperparameters are settings of the run.
        states: of the monitors.
        folder: where the page goes.
    """
    from spectral_param.report.album import draw  # these two load matplotlib, which training does without
    from spectral_param.report.page import FILE_NAME, write_report

    run = Run(name=folder.name, settings=_settings(trainer, model))
    for state in states:
        run.add_state(state)
    album = draw(run)
    path = write_report(run, folder / FILE_NAME, album)
    for logger in trainer.loggers:
        for title, figure in album.items():
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure(title, figure, trainer.global_step)
            elif hasattr(logger, "log_image"):
                logger.log_image(title, [figure], trainer.global_step)
    rank_zero_info(f"A report on singular values and gradients is in {path}")


def _settings(trainer: Trainer, model: LightningModule) -> dict[str, str]:
    optimizers = [type(optimizer).__name__ for optimizer in trainer.optimizers]
    known = {
        **model.hparams,
        "optimizer": ", ".join(optimizers),
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "precision": trainer.precision,
        "devices": trainer.world_size,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
    }
    return {str(name): str(value) for name, value in known.items()}
