"""Classification of samples with any number of labels."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MultilabelF1Score, MultilabelRankingAveragePrecision

from datamodules.batched import Batch
from lightning_modules.tasks.vector_task import VectorTask

RANKS = (1, 3, 5)


class PrecisionAt(Metric):
    """P@k: the share of a sample's k highest scored labels that it has, in the mean over the samples.

    Args:
        k: how many labels are named.

    Example:
        >>> precision = PrecisionAt(2)
        >>> precision.update(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[1, 0, 1]]))
        >>> precision.compute()
        tensor(0.5000)
    """

    right: Tensor
    samples: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.add_state("right", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("samples", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Adds samples: scores and labels, 0 or 1, both ``(batch, labels)``."""
        named = scores.topk(min(self.k, scores.shape[1])).indices
        self.right += labels.gather(1, named).sum()
        self.samples += len(labels)

    def compute(self) -> Tensor:
        """Returns the precision of all samples so far."""
        return self.right / (self.k * self.samples)


class MultiLabelClassifier(VectorTask):
    """Finds the labels of a sample (Appendix C.1.1 of the paper).

    The targets have the shape ``(batch, output_size)``, float32, 1 at each label of the sample; the loss is the binary
    cross-entropy of a label in nats. The metrics are F₁ over all labels of all samples (``f1``), the average precision
    of the ranking of the labels (``ranking_precision``), and P@1, P@3 and P@5 (``precision_at_1``, …), by which these
    sets are judged elsewhere. Predictions are probabilities.

    Example:
        >>> model = MultiLabelClassifier(120, 101, network="mlp", depth=2)
        >>> model(model.example_input_array).shape
        torch.Size([2, 101])
    """

    def metrics(self) -> dict[str, Metric]:
        """Returns F₁, the average precision of the ranking, and P@k."""
        labels = self.hparams["output_size"]
        return {
            "f1": MultilabelF1Score(labels, average="micro"),
            "ranking_precision": MultilabelRankingAveragePrecision(labels),
            **{f"precision_at_{k}": PrecisionAt(k) for k in RANKS},
        }

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the binary cross-entropy of a label, in nats."""
        return F.binary_cross_entropy_with_logits(output, target)

    def judged(self, output: Tensor, target: Tensor) -> Batch:
        """Returns scores from 0 to 1, and labels as integers."""
        # in the order of the probabilities and on their side of ½; of large logits these are all 1
        return (F.softsign(output.double().clamp(-1e9, 1e9)) + 1) / 2, target.long()

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Returns the probability of each label."""
        return super().predict_step(batch, batch_idx).sigmoid()
