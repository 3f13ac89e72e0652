"""The paper's tasks as LightningModules, and their command line."""

from lightning_modules.classifier import SequenceClassifier
from lightning_modules.regressor import SequenceRegressor

__all__ = ["SequenceClassifier", "SequenceRegressor"]
