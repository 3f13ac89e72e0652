"""The adding problem: remember two marked numbers of a long sequence and add them."""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from datamodules.batched import Batch, BatchedDataModule, BatchedDataset

TRAIN, VAL, TEST = range(3)


class AddingProblem(BatchedDataModule):
    """The adding problem (Section 7.1 of the paper), generated on demand.

    An input of shape ``(batch, length, 2)``, float32, holds numbers drawn uniformly from [0, 1) and
    beside them a 1 at two steps, one in each half of the sequence, 0 elsewhere. The target of shape
    ``(batch, 1)`` is the sum of the two marked numbers.

    Every epoch has ``train_size`` new training sequences, a function of ``seed``, the epoch and
    their index; validation and test sequences stay the same.

    Args:
        length: steps of a sequence, at least 2.
        train_size: training sequences in an epoch.
        val_size: validation sequences.
        test_size: test sequences.
        batch_size: sequences in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the sequences, at least 0.
        pin_memory: whether batches lie in page-locked memory.

    Raises:
        ValueError: if ``length`` is below 2 or ``seed`` is negative.

    Example:
        >>> data = AddingProblem(length=50, train_size=256, batch_size=64)
        >>> data.setup("fit")
        >>> inputs, targets = next(iter(data.train_dataloader()))
        >>> inputs.shape, targets.shape
        (torch.Size([64, 50, 2]), torch.Size([64, 1]))
        >>> values, markers = inputs.unbind(-1)
        >>> torch.allclose((values * markers).sum(1, keepdim=True), targets)
        True
    """

    def __init__(
        self,
        length: int = 100,
        train_size: int = 12_800,
        val_size: int = 1_280,
        test_size: int = 5_120,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if length < 2:
            raise ValueError(f"length: expected at least 2, a step for each marker, got {length}.")
        if seed < 0:
            raise ValueError(f"seed: expected at least 0, got {seed}.")
        super().__init__(batch_size, num_workers, seed, pin_memory)
        self.length = length
        self.train_size = train_size
        self.val_size = val_size
        self.test_size = test_size

    @property
    def baseline_mse(self) -> float:
        """The mean squared error of always answering 1, the variance of the sum: 1/6."""
        return 1 / 6

    def setup(self, stage: str | None = None) -> None:
        """Makes the three sets; their sequences are generated when they are read."""
        self.train_set = AddingSequences(self.length, self.train_size, (self.seed, TRAIN))
        self.val_set = AddingSequences(self.length, self.val_size, (self.seed, VAL))
        self.test_set = AddingSequences(self.length, self.test_size, (self.seed, TEST))

    def _train_sampler(self, num_replicas: int, rank: int) -> DistributedSampler[int]:
        return NewSamplesEachEpoch(self.train_set, num_replicas, rank, shuffle=False, drop_last=True)


class AddingSequences(BatchedDataset):
    """Sequences of the adding problem, ``size`` of them an epoch.

    Index ``epoch * size + i`` is sequence ``i`` of that epoch, so that a worker process learns the
    epoch from the indices it is given. One epoch at a time is held.

    Args:
        length: steps of a sequence.
        size: sequences in an epoch.
        seed: integers that, with the epoch, seed the sequences.
    """

    def __init__(self, length: int, size: int, seed: tuple[int, ...]) -> None:
        self.length = length
        self.size = size
        self.seed = seed
        self._epoch: int | None = None

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the sequences at ``indices``, all of one epoch."""
        epoch = indices[0] // self.size
        if epoch != self._epoch:
            self._inputs, self._targets = self._generate(epoch)
            self._epoch = epoch
        rows = torch.tensor(indices) - epoch * self.size
        return self._inputs[rows], self._targets[rows]

    def _generate(self, epoch: int) -> Batch:
        # numpy mixes several integers into one seed; torch's generator has room for 32 bits only
        random = np.random.default_rng((*self.seed, epoch))
        values = torch.from_numpy(random.random((self.size, self.length), dtype=np.float32))
        half = self.length // 2
        first = random.integers(half, size=self.size)
        second = random.integers(half, self.length, size=self.size)
        marked = torch.from_numpy(np.stack([first, second], axis=1))
        markers = torch.zeros_like(values).scatter_(1, marked, 1.0)
        targets = values.gather(1, marked).sum(1, keepdim=True)
        return torch.stack([values, markers], dim=-1), targets


class NewSamplesEachEpoch(DistributedSampler[int]):
    """Yields other indices in every epoch: those of one epoch follow those of the last."""

    def __iter__(self) -> Iterator[int]:
        start = self.epoch * len(cast(AddingSequences, self.dataset))
        return (start + index for index in super().__iter__())
