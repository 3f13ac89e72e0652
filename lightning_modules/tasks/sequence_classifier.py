"""Classification of whole sequences."""

from lightning_modules.tasks.classifier import Classifier
from lightning_modules.tasks.sequence_task import SequenceTask


class SequenceClassifier(Classifier, SequenceTask):
    """Names the class of a sequence, as for pixel MNIST and the UCR archive.

    The targets have the shape ``(batch,)``, int64 in ``0 … output_size - 1``; the loss is the
    cross-entropy, the metric the share of right answers. Predictions are classes.

    Example:
        >>> model = SequenceClassifier(input_size=28, output_size=10, cell="lstm")
        >>> model(model.example_input_array).shape
        torch.Size([2, 10])
    """
