"""The adding problem: remember two marked numbers of a long sequence and add them."""

import numpy as np
import torch
from torch import Tensor

from datamodules.batched import Batch
from datamodules.generated import GeneratedProblem, GeneratedSequences


class AddingProblem(GeneratedProblem):
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
        super().__init__(train_size, val_size, test_size, batch_size, num_workers, seed, pin_memory)
        self.length = length

    @property
    def baseline_mse(self) -> float:
        """The mean squared error of always answering 1, the variance of the sum: 1/6."""
        return 1 / 6

    def sequences(self, size: int, seed: tuple[int, ...]) -> "AddingSequences":
        """Returns ``size`` sequences of the problem."""
        return AddingSequences(self.length, size, seed)


class AddingSequences(GeneratedSequences):
    """Sequences of the adding problem.

    Args:
        length: steps of a sequence.
        size: sequences in an epoch.
        seed: integers that, with the epoch, seed the sequences.
    """

    def __init__(self, length: int, size: int, seed: tuple[int, ...]) -> None:
        super().__init__(size, seed)
        self.length = length

    def draw(self, random: np.random.Generator) -> Tensor:
        """Draws the inputs, ``(size, length, 2)``."""
        values = torch.from_numpy(random.random((self.size, self.length), dtype=np.float32))
        half = self.length // 2
        first = random.integers(half, size=self.size)
        second = random.integers(half, self.length, size=self.size)
        marked = torch.from_numpy(np.stack([first, second], axis=1))
        return torch.stack([values, torch.zeros_like(values).scatter_(1, marked, 1.0)], dim=-1)

    def batch(self, drawn: Tensor) -> Batch:
        """Adds the marked numbers."""
        values, markers = drawn.unbind(-1)
        return drawn, (values * markers).sum(1, keepdim=True)
