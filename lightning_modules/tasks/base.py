"""What all tasks share: steps, metrics, baselines and the optimizer."""

from abc import ABC, abstractmethod

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torchmetrics import MeanMetric, Metric, MetricCollection

Batch = tuple[Tensor, Tensor]


class Task(LightningModule, ABC):
    """A network trained by Adam, whose learning rate is multiplied by ``decay`` after each epoch.

    Logs ``train_loss``, and the loss and the metrics of validation and test, say ``val_loss`` and ``val_accuracy``.
    Where the data module has the score of a trivial answer, say ``baseline_mse``, it is logged beside them. Checkpoints
    load without arguments.

    Subclasses take ``learning_rate`` and ``decay`` among their arguments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        metrics = MetricCollection({**self.metrics()})
        self.scores = list(metrics)
        self.val_loss, self.val_metrics = MeanMetric(), metrics.clone(prefix="val_")
        self.test_loss, self.test_metrics = MeanMetric(), metrics.clone(prefix="test_")

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Returns new metrics of validation and test, by name."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss of a batch."""

    def judged(self, output: Tensor, target: Tensor) -> Batch:
        """Returns the part of a batch's output and target that the metrics judge."""
        return output, target

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch."""
        input, target = batch
        loss = self.loss(self(input), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the loss and the metrics of the validation set."""
        input, target = batch
        self.evaluate("val", self.val_loss, self.val_metrics, self(input), target)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs the loss and the metrics of the test set."""
        input, target = batch
        self.evaluate("test", self.test_loss, self.test_metrics, self(input), target)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the answers to the inputs of a batch."""
        input, _ = batch
        return self(input)

    def on_validation_epoch_end(self) -> None:
        """Logs what a trivial answer scores."""
        self._log_baselines()

    def on_test_epoch_end(self) -> None:
        """Logs what a trivial answer scores."""
        self._log_baselines()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns Adam and its decay by epoch."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams["learning_rate"])
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.hparams["decay"])
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def evaluate(self, stage: str, loss: MeanMetric, metrics: MetricCollection, output: Tensor, target: Tensor) -> None:
        """Adds a batch to the loss and the metrics of a stage, and logs them."""
        loss.update(self.loss(output, target), len(target))
        metrics.update(*self.judged(output, target))
        self.log(f"{stage}_loss", loss)
        self.log_dict(metrics, prog_bar=True)

    def _log_baselines(self) -> None:
        data = getattr(self.trainer, "datamodule", None)
        for name in ("loss", *self.scores):
            score = getattr(data, f"baseline_{name}", None)
            if score is not None:
                self.log(f"baseline_{name}", score)
