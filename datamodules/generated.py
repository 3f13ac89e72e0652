"""Problems whose sequences are drawn at random, new ones in every epoch of training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DistributedSampler

from datamodules.batched import Batch, BatchedDataModule, BatchedDataset

TRAIN, VAL, TEST = range(3)


class GeneratedSequences(BatchedDataset, ABC):
    """Sequences that are functions of their seed, the epoch and their index, ``size`` of them an epoch.

    Index ``epoch * size + i`` is sequence ``i`` of that epoch, so that a worker process learns the
    epoch from the indices it is given. One epoch at a time is held.

    Args:
        size: sequences in an epoch.
        seed: integers that, with the epoch, seed the sequences.
    """

    def __init__(self, size: int, seed: tuple[int, ...]) -> None:
        self.size = size
        self.seed = seed
        self._epoch: int | None = None

    @abstractmethod
    def draw(self, random: np.random.Generator) -> Tensor:
        """Draws what is random in an epoch, ``(size, …)``."""

    @abstractmethod
    def batch(self, drawn: Tensor) -> Batch:
        """Makes inputs and targets of some rows of what was drawn."""

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the sequences at ``indices``, all of one epoch."""
        epoch = indices[0] // self.size
        if epoch != self._epoch:
            # numpy mixes several integers into one seed; torch's generator has room for 32 bits only
            self._drawn = self.draw(np.random.default_rng((*self.seed, epoch)))
            self._epoch = epoch
        return self.batch(self._drawn[torch.tensor(indices) - epoch * self.size])


class GeneratedProblem(BatchedDataModule):
    """A problem generated on demand: new training sequences every epoch, the same ones to validate and test.

    Args:
        train_size: training sequences in an epoch.
        val_size: validation sequences.
        test_size: test sequences.
        batch_size: sequences in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the sequences, at least 0.
        pin_memory: whether batches lie in page-locked memory.

    Raises:
        ValueError: if ``seed`` is negative.
    """

    def __init__(
        self,
        train_size: int,
        val_size: int,
        test_size: int,
        batch_size: int,
        num_workers: int,
        seed: int,
        pin_memory: bool,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed: expected at least 0, got {seed}.")
        super().__init__(batch_size, num_workers, seed, pin_memory)
        self.train_size = train_size
        self.val_size = val_size
        self.test_size = test_size

    @abstractmethod
    def sequences(self, size: int, seed: tuple[int, ...]) -> GeneratedSequences:
        """Returns ``size`` sequences of the problem."""

    def setup(self, stage: str | None = None) -> None:
        """Makes the three sets; their sequences are generated when they are read."""
        self.train_set = self.sequences(self.train_size, (self.seed, TRAIN))
        self.val_set = self.sequences(self.val_size, (self.seed, VAL))
        self.test_set = self.sequences(self.test_size, (self.seed, TEST))

    def _train_sampler(self, num_replicas: int, rank: int) -> DistributedSampler[int]:
        return NewSamplesEachEpoch(self.train_set, num_replicas, rank, shuffle=False, drop_last=True)


class NewSamplesEachEpoch(DistributedSampler[int]):
    """Yields other indices in every epoch: those of one epoch follow those of the last."""

    def __iter__(self) -> Iterator[int]:
        start = self.epoch * len(cast(GeneratedSequences, self.dataset))
        return (start + index for index in super().__iter__())
