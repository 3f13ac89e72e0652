"""The paper's tasks as LightningModules, and their command line."""

from spectral_param.extras import extra

with extra("tasks"):
    from lightning_modules.prediction_writer import PredictionWriter
    from lightning_modules.tasks import (
        ImageClassifier,
        LanguageModel,
        MultiLabelClassifier,
        SequenceClassifier,
        SequenceCopier,
        SequenceRegressor,
    )

__all__ = [
    "ImageClassifier",
    "LanguageModel",
    "MultiLabelClassifier",
    "PredictionWriter",
    "SequenceClassifier",
    "SequenceCopier",
    "SequenceRegressor",
]
