"""Predictions written to files."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_info
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor


class PredictionWriter(BasePredictionWriter):
    """Writes what ``Trainer.predict`` predicts, one file a rank, and says where.

    ``predictions_0.pt`` of rank 0, ``predictions_1.pt`` of rank 1 and so on hold a dictionary that
    ``torch.load(path)`` reads: ``predictions``, what ``predict_step`` returned of each batch, in order, on the CPU; and
    ``indices``, for each batch the places of its samples in the data set, by which the files of several ranks fit
    together. Both are lists; over several loaders they are lists of the loaders' lists. A file appears only when it is
    whole, in the place of one of an earlier run; those of an earlier run with more ranks are removed.

    ``spectral-param predict`` has one already.

    Args:
        output_dir: folder of the files, made if it is not there; None: the Trainer's ``log_dir``.

    Raises:
        OSError: before the first prediction, if the folder cannot be made or written to.

    Example:
        >>> import tempfile
        >>> from lightning.pytorch.demos.boring_classes import BoringModel
        >>> folder = tempfile.mkdtemp()
        >>> options = {"logger": False, "enable_progress_bar": False, "limit_predict_batches": 2, "accelerator": "cpu"}
        >>> trainer = Trainer(callbacks=PredictionWriter(folder), **options)
        >>> _ = trainer.predict(BoringModel())
        >>> written = torch.load(f"{folder}/predictions_0.pt")
        >>> [prediction.shape for prediction in written["predictions"]], written["indices"]
        ([torch.Size([1, 2]), torch.Size([1, 2])], [[0], [1]])
    """

    def __init__(self, output_dir: str | Path | None = None) -> None:
        super().__init__(write_interval="epoch")
        self.output_dir = output_dir

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Makes the folder."""
        folder = Path(self.output_dir or trainer.log_dir or trainer.default_root_dir)
        self._path = folder / f"predictions_{trainer.global_rank}.pt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            raise OSError(f"output_dir: expected a folder that can be written to, got {folder} ({error}).") from error

    def write_on_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Writes the predictions of this rank."""
        indices = batch_indices[0] if len(batch_indices) == 1 else batch_indices
        part = self._path.with_suffix(".part")
        written = apply_to_collection(list(predictions), Tensor, _alone)
        try:
            torch.save({"predictions": written, "indices": list(indices)}, part)
            part.replace(self._path)
        finally:
            part.unlink(missing_ok=True)
        if trainer.is_global_zero:
            _remove_ranks_from(trainer.world_size, self._path.parent)
        rank_zero_info(f"The predictions are in {self._path}")


def _alone(tensor: Tensor) -> Tensor:
    """Without the rest of the memory that it is a view of, all of which would be saved."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _remove_ranks_from(first: int, folder: Path) -> None:
    for path in folder.glob("predictions_*.pt"):
        rank = path.stem.removeprefix("predictions_")
        if rank.isdecimal() and int(rank) >= first:
            path.unlink()
