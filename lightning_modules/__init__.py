"""The paper's tasks as LightningModules, and their command line."""

from lightning_modules.classifier import SequenceClassifier
from lightning_modules.copier import SequenceCopier
from lightning_modules.image_classifier import ImageClassifier
from lightning_modules.language_model import LanguageModel
from lightning_modules.multilabel_classifier import MultiLabelClassifier
from lightning_modules.prediction_writer import PredictionWriter
from lightning_modules.regressor import SequenceRegressor

__all__ = [
    "ImageClassifier",
    "LanguageModel",
    "MultiLabelClassifier",
    "PredictionWriter",
    "SequenceClassifier",
    "SequenceCopier",
    "SequenceRegressor",
]
