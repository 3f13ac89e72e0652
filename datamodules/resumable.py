"""A loader of training batches that goes on in the middle of an epoch."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeVar

from lightning import Trainer
from torch.utils.data import DataLoader

T = TypeVar("T", covariant=True)


class ResumableLoader(DataLoader[T]):
    """A loader that leaves out what its trainer has trained of the epoch, in a run that is resumed within one.

    The batches of an epoch must be a function of the epoch. How many there have been stands in the trainer's own part
    of the checkpoint; a state of the loader's own would not know an epoch that ended early, by
    ``limit_train_batches``, from one that was interrupted.
    """

    trainer: Trainer | None = None
    resumed = False

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]  # torch gives out its own iterator
        done = 0
        if self.trainer is not None and self.resumed:
            # zero at the end of an epoch: this is read at the first batch, when the trainer has begun the next one
            done = self.trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self.resumed = False
        yield from islice(super().__iter__(), done, None)

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: that it is there tells Lightning that the loader may be resumed."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes notice: Lightning calls this when a run is resumed."""
        self.resumed = True
