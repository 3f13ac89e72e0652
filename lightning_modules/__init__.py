"""The paper's tasks as LightningModules, and their command line."""

from lightning_modules.prediction_writer import PredictionWriter
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
    "PredictionWriter",
    "SequenceClassifier",
    "SequenceCopier",
    "SequenceRegressor",
]
