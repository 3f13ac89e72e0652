"""Going on with a run that was interrupted."""

import time
from pathlib import Path

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

SECONDS = 60.0
"""Least time between two savings: most runs are shorter."""


class LastEpoch(Checkpoint):
    """Saves the whole run at the end of an epoch, if the last time is a minute ago.

    Args:
        path: the file, which is there whole or as it was before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves, after the checkpoints before it in the list."""
        if time.monotonic() - self._saved >= SECONDS:
            trainer.save_checkpoint(self.path)
            self._saved = time.monotonic()
