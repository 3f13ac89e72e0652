"""A task whose answers are NaN says so: no metric and no loss leaves them out."""

import math

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from datamodules import AddingProblem, CopyMemory, FlatMNIST, MultiLabel, PennTreebank, PixelMNIST
from lightning_modules import (
    ImageClassifier,
    LanguageModel,
    MultiLabelClassifier,
    SequenceClassifier,
    SequenceCopier,
    SequenceRegressor,
)
from tests.small_data import write_multilabel, write_words

SMALL = {"hidden_size": 8, "reflectors": 4}
DEEP = {"depth": 2, "width": 8, "reflectors": 4}


@pytest.fixture(params=["regressor", "classifier", "copier", "language", "image", "multilabel"])
def task(request, small_mnist, tmp_path):
    sizes = {"train_size": 16, "val_size": 16, "test_size": 16, "batch_size": 8}
    match request.param:
        case "regressor":
            return SequenceRegressor(2, 1, **SMALL), AddingProblem(6, **sizes)
        case "classifier":
            return SequenceClassifier(28, 10, **SMALL), PixelMNIST(small_mnist, 28, val_size=20, batch_size=10)
        case "copier":
            return SequenceCopier(10, 9, **SMALL), CopyMemory(lag=3, **sizes)
        case "language":
            return LanguageModel(10, **SMALL), PennTreebank(write_words(tmp_path), seq_len=7, eval_batch_size=2)
        case "image":
            return ImageClassifier(784, 10, **DEEP), FlatMNIST(small_mnist, val_size=20, batch_size=10)
        case "multilabel":
            return MultiLabelClassifier(6, 3, **DEEP), MultiLabel("bibtex", write_multilabel(tmp_path), batch_size=2)


def spoil(model, monkeypatch, which) -> None:
    """Makes the answers to some batches of validation and test NaN."""
    answer = type(model).answer

    def spoilt(self, input, stage, batch_idx):
        output = answer(self, input, stage, batch_idx)
        return output * math.nan if stage != "train" and which(self, batch_idx) else output

    monkeypatch.setattr(type(model), "answer", spoilt)


def trainer(folder, *callbacks, **options) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(accelerator="cpu", default_root_dir=folder, callbacks=list(callbacks), **quiet, **options)


@pytest.mark.parametrize("which", [lambda _, i: True, lambda _, i: i == 1], ids=["all batches", "one batch"])
def test_loss_and_metrics_are_nan(task, which, tmp_path, monkeypatch):
    model, data = task
    spoil(model, monkeypatch, which)
    run = trainer(tmp_path, enable_checkpointing=False)
    for stage, evaluate in (("val", run.validate), ("test", run.test)):
        (logged,) = evaluate(model, data, verbose=False)
        own = {name: value for name, value in logged.items() if name.startswith(stage)}
        assert own.keys() == {f"{stage}_loss", *(f"{stage}_{name}" for name in model.scores)}
        assert all(math.isnan(value) for value in own.values()), own


def test_scores_are_numbers_again_in_the_next_epoch(task, tmp_path, monkeypatch):
    model, data = task
    whole = trainer(tmp_path, enable_checkpointing=False).test(model, data, verbose=False)
    run = trainer(tmp_path, enable_checkpointing=False)
    with monkeypatch.context() as patched:
        spoil(model, patched, lambda *_: True)
        run.test(model, data, verbose=False)
    assert run.test(model, data, verbose=False) == whole


def test_an_epoch_of_nan_is_never_the_best(task, tmp_path, monkeypatch):
    model, data = task
    spoil(model, monkeypatch, lambda model, _: model.current_epoch == 1)
    for name, mode in (("loss", "min"), *((name, "max") for name in model.scores)):
        best = ModelCheckpoint(tmp_path / name, "{epoch}", monitor=f"val_{name}", mode=mode)
        trainer(tmp_path, best, max_epochs=2, limit_train_batches=1, num_sanity_val_steps=0).fit(model, data)
        assert torch.isfinite(best.best_model_score)
        assert best.best_model_path.endswith("epoch=0.ckpt")


def test_the_loss_of_training_is_nan(task, tmp_path):
    model, data = task
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(math.nan)
    run = trainer(tmp_path, enable_checkpointing=False, max_epochs=1, limit_val_batches=0, log_every_n_steps=1)
    run.fit(model, data)
    assert run.callback_metrics["train_loss"].isnan()
