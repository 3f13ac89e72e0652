"""Data sets held in memory and read a batch at a time, and the loaders over them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from lightning import LightningDataModule
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from datamodules.resumable import ResumableLoader

Batch = tuple[Tensor, Tensor]
Loader = TypeVar("Loader", bound=DataLoader[Batch])


class BatchedDataset(Dataset[Batch]):
    """A data set that makes a whole batch of (input, target) at once, by indexing tensors.

    Subclasses write ``__len__`` and ``__getitems__``.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the samples at ``indices``, stacked along a first dimension."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Batch:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]


class BatchedDataModule(LightningDataModule, ABC):
    """The four loaders over three batched data sets, the same on every machine and rank.

    ``setup`` of a subclass sets :attr:`train_set` and :attr:`val_set` to fit, :attr:`test_set` to
    test and predict. The order of the training samples is a function of ``seed`` and the epoch
    alone, so a run that is resumed, within an epoch too, goes on as if never interrupted. Each
    rank gets its own share; of the training samples those that leave an uneven rest are left out,
    validation and test are never padded.

    Args:
        batch_size: samples in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of everything random.
        pin_memory: whether batches lie in page-locked memory, which is faster to copy to a GPU.
    """

    train_set: BatchedDataset
    val_set: BatchedDataset
    test_set: BatchedDataset

    def __init__(
        self,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.pin_memory = pin_memory

    @abstractmethod
    def setup(self, stage: str | None = None) -> None:
        """Sets the sets that a stage reads."""

    def train_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the training samples, in a new order each epoch."""
        loader = self._loader(self.train_set, self._train_sampler(**self._share()), ResumableLoader)
        loader.trainer = self.trainer
        return loader

    def val_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the validation samples, in order."""
        return self._evaluation_loader(self.val_set)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test samples, in order."""
        return self._evaluation_loader(self.test_set)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test samples, in order."""
        return self._evaluation_loader(self.test_set)

    def _train_sampler(self, num_replicas: int, rank: int) -> DistributedSampler[int]:
        return DistributedSampler(self.train_set, num_replicas, rank, shuffle=True, seed=self.seed, drop_last=True)

    def _evaluation_loader(self, dataset: BatchedDataset) -> DataLoader[Batch]:
        sampler = UnrepeatedDistributedSampler(dataset, **self._share(), shuffle=False)
        return self._loader(dataset, sampler, DataLoader)

    def _share(self) -> dict[str, int]:
        """The number of processes that share the data, and this one's rank among them."""
        strategy_share = self.trainer.distributed_sampler_kwargs if self.trainer else None
        return strategy_share or {"num_replicas": 1, "rank": 0}

    def _loader(self, dataset: BatchedDataset, sampler: DistributedSampler[int], kind: type[Loader]) -> Loader:
        return kind(
            dataset,
            batch_size=self.batch_size,
            sampler=sampler,
            collate_fn=_as_it_is,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=self.pin_memory,
        )


def _as_it_is(batch: Any) -> Any:
    return batch
