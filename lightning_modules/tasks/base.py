"""What all tasks share: steps, metrics, baselines and the optimizer."""

import math
from abc import ABC, abstractmethod

import torch
from lightning import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torchmetrics import MeanMetric, Metric, MetricCollection

from datamodules.batched import Batch
from spectral_param import parameter_groups


class Task(LightningModule, ABC):
    """A network trained by Adam, whose learning rate is multiplied by ``decay`` after each epoch.

    Logs ``train_loss``, and the loss and the metrics of validation and test, say ``val_loss`` and ``val_accuracy``.
    Where the data module has the score of a trivial answer, say ``baseline_mse``, it is logged beside them. Checkpoints
    load without arguments. Where the loss of a stage is NaN, so are its metrics: they come from answers that are none.

    Subclasses take ``learning_rate`` and ``decay`` among their arguments, and ``plain_rate``, where they have one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        # not in groups: torchmetrics takes metrics for one whose states are equal after the first batch, as P@1 and P@3
        # are where no label was found
        metrics = MetricCollection({**self.metrics()}, compute_groups=False)
        self.scores = list(metrics)
        self.val_loss, self.val_metrics = mean_metric(), metrics.clone(prefix="val_")
        self.test_loss, self.test_metrics = mean_metric(), metrics.clone(prefix="test_")

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Returns new metrics of validation and test, by name."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss of a batch."""

    def judged(self, output: Tensor, target: Tensor) -> Batch:
        """Returns the part of a batch's output and target that the metrics judge."""
        return output, target

    def answer(self, input: Tensor, stage: str, batch_idx: int) -> Tensor:
        """Returns the output for a batch of "train", "val", "test" or "predict"."""
        return self(input)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the loss of a batch."""
        input, target = batch
        loss = self.loss(self.answer(input, "train", batch_idx), target)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the loss and the metrics of validation."""
        input, target = batch
        self.evaluate(self.val_loss, self.val_metrics, self.answer(input, "val", batch_idx), target)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Adds a batch to the loss and the metrics of the test."""
        input, target = batch
        self.evaluate(self.test_loss, self.test_metrics, self.answer(input, "test", batch_idx), target)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the answers to the inputs of a batch."""
        input, _ = batch
        return self.answer(input, "predict", batch_idx)

    def on_validation_epoch_start(self) -> None:
        """Begins afresh, after an interrupted pass too."""
        self._reset(self.val_loss, self.val_metrics)

    def on_test_epoch_start(self) -> None:
        """Begins afresh, after an interrupted pass too."""
        self._reset(self.test_loss, self.test_metrics)

    def on_validation_epoch_end(self) -> None:
        """Logs the loss and the metrics of validation, and what a trivial answer scores."""
        self._log_scores("val", self.val_loss, self.val_metrics)

    def on_test_epoch_end(self) -> None:
        """Logs the loss and the metrics of the test, and what a trivial answer scores."""
        self._log_scores("test", self.test_loss, self.test_metrics)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns Adam and its decay by epoch."""
        rate = self.hparams["learning_rate"]
        plainly = self.hparams.get("plain_rate", False)
        optimizer = torch.optim.Adam(parameter_groups(self, lr=rate) if plainly else self.parameters(), lr=rate)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.hparams["decay"])
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def evaluate(self, loss: MeanMetric, metrics: MetricCollection, output: Tensor, target: Tensor) -> None:
        """Adds a batch to the loss and the metrics of a stage."""
        loss.update(self.loss(output, target), len(target))
        metrics.update(*self.judged(output, target))

    @staticmethod
    def _reset(loss: MeanMetric, metrics: MetricCollection) -> None:
        loss.reset()
        metrics.reset()

    def _log_scores(self, stage: str, loss: MeanMetric, metrics: MetricCollection) -> None:
        mean = loss.compute()
        # classes and ranks of NaN are numbers, and F₁ counts NaN as "no"
        scores = {name: torch.where(mean.isnan(), mean, score) for name, score in metrics.compute().items()}
        self.log(f"{stage}_loss", mean, sync_dist=True)
        self.log_dict(scores, prog_bar=True, sync_dist=True)
        self._reset(loss, metrics)
        data = getattr(self.trainer, "datamodule", None)
        for name in ("loss", *self.scores):
            score = getattr(data, f"baseline_{name}", None)
            if score is not None:
                self.log(f"baseline_{name}", score)


def mean_metric() -> MeanMetric:
    """Returns a mean that is NaN once a NaN was among what it is of; torchmetrics' own leaves NaN out."""
    return MeanMetric(nan_strategy=math.nan)
