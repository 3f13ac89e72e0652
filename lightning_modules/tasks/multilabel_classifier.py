"""Classification of samples with any number of labels."""

import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MultilabelF1Score, MultilabelRankingAveragePrecision

from datamodules.batched import Batch
from lightning_modules.tasks.vector_task import VectorTask


class MultiLabelClassifier(VectorTask):
    """Finds the labels of a sample (Appendix C.1.1 of the paper).

    The targets have the shape ``(batch, output_size)``, float32, 1 at each label of the sample; the loss is the binary
    cross-entropy of a label in nats. The metrics are F₁ over all labels of all samples (``f1``), and the average
    precision of the ranking of the labels (``ranking_precision``). Predictions are probabilities.

    Example:
        >>> model = MultiLabelClassifier(120, 101, network="mlp", depth=2)
        >>> model(model.example_input_array).shape
        torch.Size([2, 101])
    """

    def metrics(self) -> dict[str, Metric]:
        """Returns F₁ and the average precision of the ranking."""
        labels = self.hparams["output_size"]
        return {
            "f1": MultilabelF1Score(labels, average="micro"),
            "ranking_precision": MultilabelRankingAveragePrecision(labels),
        }

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the binary cross-entropy of a label, in nats."""
        return F.binary_cross_entropy_with_logits(output, target)

    def judged(self, output: Tensor, target: Tensor) -> Batch:
        """Returns probabilities, and labels as integers."""
        return output.sigmoid(), target.long()

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the probability of each label."""
        return super().predict_step(batch, batch_idx).sigmoid()
