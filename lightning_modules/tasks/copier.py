"""Copying from memory."""

from torch import Tensor

from datamodules.batched import Batch
from datamodules.copy_memory import COPIED
from lightning_modules.tasks.classifier import Classifier
from lightning_modules.tasks.sequence_task import SequenceTask


class SequenceCopier(Classifier, SequenceTask):
    """Answers at every step, and at the last ``copied`` steps by what it has read long before.

    The targets have the shape ``(batch, length)``, int64 in ``0 … output_size - 1``; the loss is the cross-entropy of
    a step in nats, over all steps, the metric the share of right answers at the last ``copied`` steps, by which
    predictions are made too. Without memory of the sequence the loss is 10 ln 8 / (lag + 20), logged as
    ``baseline_loss``.

    Example:
        >>> model = SequenceCopier(input_size=10, output_size=9, cell="lstm")
        >>> model(model.example_input_array).shape
        torch.Size([2, 5, 9])
    """

    copied = COPIED

    def forward(self, input: Tensor) -> Tensor:
        """Maps ``(batch, length, input_size)`` to ``(batch, length, output_size)``."""
        states, _ = self.recurrent(input)
        return self.head(states)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the cross-entropy of a step, in nats."""
        return super().loss(output.flatten(0, 1), target.flatten())

    def judged(self, output: Tensor, target: Tensor) -> Batch:
        """Returns the steps at which symbols are given back."""
        return output[:, -self.copied :].flatten(0, 1), target[:, -self.copied :].flatten()

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the symbols given back, ``(batch, copied)``."""
        return super().predict_step(batch, batch_idx)[:, -self.copied :]
