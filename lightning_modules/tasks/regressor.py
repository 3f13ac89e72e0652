"""Regression on whole sequences."""

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import MeanSquaredError, Metric

from lightning_modules.tasks.sequence_task import SequenceTask


class SequenceRegressor(SequenceTask):
    """Answers a sequence by numbers, as in the adding problem.

    The targets have the shape ``(batch, output_size)``; loss and metric are the mean squared error.

    Example:
        >>> model = SequenceRegressor(input_size=2, output_size=1, cell="lstm")
        >>> model(model.example_input_array).shape
        torch.Size([2, 1])
    """

    def metrics(self) -> dict[str, Metric]:
        """Returns the mean squared error."""
        return {"mse": MeanSquaredError()}

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean squared error."""
        return F.mse_loss(output, target)
