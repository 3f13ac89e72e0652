"""What the tasks on whole sequences share: model, steps and optimizer."""

from abc import ABC, abstractmethod

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric

from lightning_modules.cells import Cell, Nonlinearity, recurrent_layer

Batch = tuple[Tensor, Tensor]


class SequenceTask(LightningModule, ABC):
    """Answers once for a whole sequence: a recurrent layer and a linear head on its last state.

    Trained by Adam; the learning rate is multiplied by ``decay`` after each epoch. Logs
    ``train_loss``, and the loss and the metric of validation and test, say ``val_loss`` and
    ``val_accuracy``. Checkpoints load without arguments.

    Args:
        input_size: features of a step.
        output_size: numbers, or classes, of an answer.
        cell: the recurrent layer; see :func:`lightning_modules.cells.recurrent_layer`, as for the
            arguments up to ``learn_initial_state``.
        hidden_size: size n of the state.
        reflectors: reflectors of U and of V, at most n.
        radius: radius of the band around 1 that holds σ.
        nonlinearity: activation; None is the cell's usual one.
        negative_slope: slope of leaky_relu below zero.
        learn_initial_state: whether the state before the first step is trained.
        learning_rate: Adam's learning rate in the first epoch.
        decay: factor of the learning rate from epoch to epoch.
    """

    metric_name: str

    def __init__(
        self,
        input_size: int,
        output_size: int,
        cell: Cell = "spectral-rnn",
        hidden_size: int = 128,
        reflectors: int = 16,
        radius: float = 0.01,
        nonlinearity: Nonlinearity | None = None,
        negative_slope: float = 0.01,
        learn_initial_state: bool = False,
        learning_rate: float = 1e-3,
        decay: float = 1.0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.recurrent = recurrent_layer(
            cell,
            input_size,
            hidden_size,
            reflectors=reflectors,
            radius=radius,
            nonlinearity=nonlinearity,
            negative_slope=negative_slope,
            learn_initial_state=learn_initial_state,
        )
        self.head = nn.Linear(hidden_size, output_size)
        self.val_loss, self.val_metric = MeanMetric(), self.metric()
        self.test_loss, self.test_metric = MeanMetric(), self.metric()
        self.example_input_array = torch.zeros(2, 5, input_size)

    @abstractmethod
    def metric(self) -> Metric:
        """Returns a new metric of validation and test."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss of a batch."""

    def forward(self, input: Tensor) -> Tensor:
        """Maps ``(batch, length, input_size)`` to ``(batch, output_size)``."""
        _, state = self.recurrent(input)
        last = state[0] if isinstance(state, tuple) else state  # h of an LSTM's (h, c)
        return self.head(last[-1])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch."""
        input, target = batch
        loss = self.loss(self(input), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the loss and the metric of the validation set."""
        self._evaluate("val", self.val_loss, self.val_metric, batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the loss and the metric of the test set."""
        self._evaluate("test", self.test_loss, self.test_metric, batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the answers to the inputs of a batch."""
        input, _ = batch
        return self(input)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns Adam and its decay by epoch."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["learning_rate"])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.hparams["decay"])
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def _evaluate(self, stage: str, loss: MeanMetric, metric: Metric, batch: Batch) -> None:
        input, target = batch
        output = self(input)
        loss(self.loss(output, target), len(target))
        metric(output, target)
        self.log(f"{stage}_loss", loss)
        self.log(f"{stage}_{self.metric_name}", metric, prog_bar=True)
