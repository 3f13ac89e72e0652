"""What the tasks share that name a class."""

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from datamodules.batched import Batch
from lightning_modules.tasks.base import Task


class Classifier(Task):
    """Judges answers by cross-entropy and the share of right classes; goes before what has the network.

    Subclasses take ``output_size``, the number of classes, among their arguments.
    """

    def metrics(self) -> dict[str, Metric]:
        """Returns the share of right answers, each sample counting the same."""
        return {"accuracy": MulticlassAccuracy(self.hparams["output_size"], average="micro")}

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the cross-entropy, in nats."""
        return F.cross_entropy(output, target)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the most likely classes."""
        return super().predict_step(batch, batch_idx).argmax(-1)
