"""The paper's tasks: a network, its loss and its metrics, as LightningModules."""

from lightning_modules.tasks.copier import SequenceCopier
from lightning_modules.tasks.image_classifier import ImageClassifier
from lightning_modules.tasks.language_model import LanguageModel
from lightning_modules.tasks.multilabel_classifier import MultiLabelClassifier
from lightning_modules.tasks.regressor import SequenceRegressor
from lightning_modules.tasks.sequence_classifier import SequenceClassifier

__all__ = [
    "ImageClassifier",
    "LanguageModel",
    "MultiLabelClassifier",
    "SequenceClassifier",
    "SequenceCopier",
    "SequenceRegressor",
]
