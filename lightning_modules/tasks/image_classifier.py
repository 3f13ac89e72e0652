"""Classification of images by deep networks."""

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from lightning_modules.tasks.base import Batch
from lightning_modules.tasks.vector_task import VectorTask


class ImageClassifier(VectorTask):
    """Names the class of an image that is given as a vector (Section 7.2 of the paper).

    The targets have the shape ``(batch,)``, int64 in ``0 … output_size - 1``; the loss is the
    cross-entropy, the metric the share of right answers. Predictions are classes.

    Example:
        >>> model = ImageClassifier(784, 10, network="spectral-resnet", depth=4)
        >>> model(model.example_input_array).shape
        torch.Size([2, 10])
    """

    def metrics(self) -> dict[str, Metric]:
        """Returns the share of right answers, each sample counting the same."""
        return {"accuracy": MulticlassAccuracy(self.hparams["output_size"], average="micro")}

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the cross-entropy, in nats."""
        return F.cross_entropy(output, target)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the most likely class of each image."""
        return super().predict_step(batch, batch_idx).argmax(-1)
