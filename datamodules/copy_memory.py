"""The copying problem: hold ten symbols over a long silence and give them back."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.batched import Batch
from datamodules.generated import GeneratedProblem, GeneratedSequences

SYMBOLS = 8
COPIED = 10
BLANK, DELIMITER = SYMBOLS, SYMBOLS + 1


class CopyMemory(GeneratedProblem):
    """The copying problem (Section 7.1 of the paper), generated on demand.

    A sequence has ``lag + 20`` steps: ten symbols out of eight, ``lag - 1`` blanks, a delimiter that asks for the
    answer, and ten blanks. An input of shape ``(batch, lag + 20, 10)``, float32, has a 1 at the symbol of each step:
    0 … 7 are the symbols, 8 the blank, 9 the delimiter. The target of shape ``(batch, lag + 20)``, int64 in 0 … 8, is
    the blank, and at the last ten steps the ten symbols in their order.

    Every epoch has ``train_size`` new training sequences, a function of ``seed``, the epoch and
    their index; validation and test sequences stay the same.

    Args:
        lag: steps T between the last symbol and the first answer, at least 1.
        train_size: training sequences in an epoch.
        val_size: validation sequences.
        test_size: test sequences.
        batch_size: sequences in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the sequences, at least 0.
        pin_memory: whether batches lie in page-locked memory.

    Raises:
        ValueError: if ``lag`` is below 1 or ``seed`` is negative.

    Example:
        >>> data = CopyMemory(lag=3, train_size=4, batch_size=4)
        >>> data.setup("fit")
        >>> inputs, targets = next(iter(data.train_dataloader()))
        >>> inputs.shape, targets.shape
        (torch.Size([4, 23, 10]), torch.Size([4, 23]))
        >>> bool((inputs[:, :10].argmax(-1) == targets[:, -10:]).all())
        True
    """

    def __init__(
        self,
        lag: int = 100,
        train_size: int = 12_800,
        val_size: int = 1_280,
        test_size: int = 5_120,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
    ) -> None:
        if lag < 1:
            raise ValueError(f"lag: expected at least 1, got {lag}.")
        super().__init__(train_size, val_size, test_size, batch_size, num_workers, seed, pin_memory)
        self.lag = lag

    @property
    def baseline_loss(self) -> float:
        """The cross-entropy without memory, blanks and then any symbol: 10 ln 8 / (lag + 20), in nats a step."""
        return COPIED * math.log(SYMBOLS) / (self.lag + 2 * COPIED)

    def sequences(self, size: int, seed: tuple[int, ...]) -> "CopySequences":
        """Returns ``size`` sequences of the problem."""
        return CopySequences(self.lag, size, seed)


class CopySequences(GeneratedSequences):
    """Sequences of the copying problem, kept as their ten symbols.

    Args:
        lag: steps between the last symbol and the first answer.
        size: sequences in an epoch.
        seed: integers that, with the epoch, seed the sequences.
    """

    def __init__(self, lag: int, size: int, seed: tuple[int, ...]) -> None:
        super().__init__(size, seed)
        self.lag = lag

    def draw(self, random: np.random.Generator) -> Tensor:
        """Draws the symbols, ``(size, 10)``."""
        return torch.from_numpy(random.integers(SYMBOLS, size=(self.size, COPIED)))

    def batch(self, drawn: Tensor) -> Batch:
        """Sets the symbols into the silence."""
        silence = torch.full((len(drawn), self.lag + COPIED), BLANK)
        inputs = torch.cat([drawn, silence], dim=1)
        inputs[:, COPIED + self.lag - 1] = DELIMITER
        return F.one_hot(inputs, DELIMITER + 1).float(), torch.cat([silence, drawn], dim=1)
