"""Classification of images by deep networks."""

from lightning_modules.tasks.classifier import Classifier
from lightning_modules.tasks.vector_task import VectorTask


class ImageClassifier(Classifier, VectorTask):
    """Names the class of an image that is given as a vector (Section 7.2 of the paper).

    The targets have the shape ``(batch,)``, int64 in ``0 … output_size - 1``; the loss is the
    cross-entropy, the metric the share of right answers. Predictions are classes.

    Example:
        >>> model = ImageClassifier(784, 10, network="spectral-resnet", depth=4)
        >>> model(model.example_input_array).shape
        torch.Size([2, 10])
    """
