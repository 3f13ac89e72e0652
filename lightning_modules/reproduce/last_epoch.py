"""Going on with a run that was interrupted."""

import time
import warnings
from pathlib import Path
from zipfile import ZipFile

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

SECONDS = 60.0
"""Least time between two savings: most runs are shorter."""


class LastEpoch(Checkpoint):
    """Saves the whole run at the end of an epoch, if a minute has passed since the last save.

    Args:
        path: the file, which is there whole or as it was before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves, after the checkpoints before it in the list."""
        if time.monotonic() - self._saved < SECONDS:
            return
        part = self.path.with_suffix(".part")
        try:
            trainer.save_checkpoint(part)
            part.replace(self.path)
        finally:
            part.unlink(missing_ok=True)
        self._saved = time.monotonic()


def to_go_on_from(last: Path, best: Path) -> Path | None:
    """Returns the checkpoint that a run goes on from; None if it begins.

    A run goes on if the checkpoints of its last epoch and of its best one, which is tested in the end, are both whole.
    Otherwise what is there is set aside, under a name that ends in ``.damaged``, and a warning says so.

    Args:
        last: the checkpoint of the last epoch.
        best: that of the best one.
    """
    if not last.exists():
        return None
    damages = [(path, damage) for path in (last, best) if (damage := _damage(path)) is not None]
    if not damages:
        return last
    for path in (last, best):
        if path.exists():
            path.replace(path.with_name(f"{path.name}.damaged"))
    found = "; ".join(f"{path}: expected a whole checkpoint, got {damage}" for path, damage in damages)
    warnings.warn(f"{found}. The run begins anew; what was there is beside it, named ….damaged.", stacklevel=2)
    return None


def _damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, which is a zip archive with a checksum of each part; None if nothing is."""
    if not path.exists():
        return "no file"
    try:
        with ZipFile(path) as file:
            part = file.testzip()
    except OSError:
        raise
    except Exception as error:  # the bytes of a damaged archive may mean anything
        return f"a damaged one ({error})"
    return None if part is None else f"a damaged one (the checksum of {part} differs)"
