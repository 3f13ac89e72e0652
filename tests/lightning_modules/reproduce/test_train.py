import math
from dataclasses import replace

import pytest
from lightning import Trainer, seed_everything

from lightning_modules.reproduce import last_epoch
from lightning_modules.reproduce.last_epoch import LastEpoch
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.train import READINGS, Curves, extreme, thinned, train

RUN = PlannedRun(
    experiment="adding",
    model="Spectral-RNN",
    setting="L = 5",
    seed=0,
    task=("SequenceRegressor", {"input_size": 2, "output_size": 1, "hidden_size": 8, "reflectors": 2}),
    data=("AddingProblem", {"length": 5, "train_size": 8, "val_size": 8, "test_size": 8, "batch_size": 8}),
    trainer={"max_epochs": 60, "accelerator": "cpu", "log_every_n_steps": 1},
    monitor="val_mse",
)


def test_a_result_says_which_epoch_was_best_and_keeps_a_part_of_the_curves(tmp_path):
    result = train(RUN, tmp_path, tmp_path)
    steps, values = result.curves["val_mse"]
    assert len(steps) == len(values) == READINGS
    assert (steps[0], steps[-1]) == (1, 60)
    assert result.best <= min(values)
    assert result.best == result.least_loss
    assert result.learning_rate == 0.001


def test_callbacks_are_made_by_name(tmp_path):
    trainer = {**RUN.trainer, "max_epochs": 1, "callbacks": [["SpectralClip", {"min": 2.0}]]}
    with pytest.raises(ValueError, match="min, max: Band"):
        train(replace(RUN, trainer=trainer), tmp_path, tmp_path)


def test_readings_go_on_after_the_best_epoch(tmp_path):
    run = replace(RUN, mode="max", trainer={**RUN.trainer, "max_epochs": 5}, watch=("gradients", "margin"))
    result = train(run, tmp_path, tmp_path)
    assert result.gradient_steps == result.curves["loss"][0] == [0, 1, 2, 3, 4]
    assert len(result.gradients) == 5
    assert result.curves["margin"][0] == [0, 1, 2, 3, 4, 5]  # and at the end
    assert len(result.curves["margin"][1]) == 6
    assert result.curves["val_mse"][1].index(result.best) < 4  # the worst, by a wrong mode, came before


@pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")  # what an interrupted run goes on from
def test_an_interrupted_run_ends_as_if_it_never_had_been(tmp_path, monkeypatch):
    trainer = {**RUN.trainer, "max_epochs": 6, "callbacks": [["SpectralClip", {"renormalize": True}]]}
    run = replace(RUN, trainer=trainer, watch=("gradients", "margin"))
    whole = train(run, tmp_path, tmp_path / "whole")
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {"best.ckpt"}  # it took less than a minute
    monkeypatch.setattr(last_epoch, "SECONDS", 0.0)
    save = LastEpoch.on_train_epoch_end

    def cut(self, trainer, pl_module):
        if trainer.current_epoch == 3:
            raise OSError("cut")
        save(self, trainer, pl_module)

    with monkeypatch.context() as patched:
        patched.setattr(LastEpoch, "on_train_epoch_end", cut)
        with pytest.raises(OSError, match="cut"):
            train(run, tmp_path, tmp_path / "cut")
    gone_on = train(run, tmp_path, tmp_path / "cut")
    assert replace(gone_on, seconds=0.0) == replace(whole, seconds=0.0)


def test_the_time_before_an_interrupt_counts():
    record = Curves()
    record.load_state_dict({"curves": {}, "seconds": 100.0})
    assert 100 <= record.state_dict()["seconds"] < 150


def test_the_best_of_what_is_finite():
    assert extreme([3.0, math.nan, 1.0, math.inf], max) == 3.0
    assert extreme([3.0, math.nan, 1.0], min) == 1.0
    assert math.isnan(extreme([math.nan], min))


@pytest.mark.parametrize("length", [1, 2, READINGS, READINGS + 1, 1000])
def test_a_thinned_curve_has_both_ends(length):
    steps, values = thinned((list(range(length)), [0.5 * i for i in range(length)]))
    assert len(steps) == min(length, READINGS)
    assert (steps[0], steps[-1]) == (0, length - 1)
    assert values == [0.5 * step for step in steps]


def test_the_best_epoch_is_what_is_tested(tmp_path):
    """The learning rate lets the first epoch in and drives the others away."""
    task = ("SequenceRegressor", {**RUN.task[1], "learning_rate": 3.0})
    run = replace(RUN, task=task, trainer={**RUN.trainer, "max_epochs": 5})
    result = train(run, tmp_path, tmp_path)
    errors = result.curves["val_mse"][1]
    assert result.best == min(errors)
    best, last = (_tested(run, tmp_path, epochs) for epochs in (errors.index(min(errors)) + 1, 5))
    assert best != pytest.approx(last, rel=0.01)
    assert result.scores["test_mse"] == pytest.approx(best, rel=1e-6)


def _tested(run, folder, epochs: int) -> float:
    """The test error after a number of epochs."""
    seed_everything(run.seed, verbose=False)
    model, data = run.make_model(), run.make_data(folder)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(**{**run.trainer, "max_epochs": epochs}, enable_model_summary=False, **quiet)
    trainer.fit(model, data)
    (scores,) = trainer.test(model, data, verbose=False)
    return scores["test_mse"]


def test_a_gradient_that_is_no_number_is_not_zero(tmp_path):
    task = ("SequenceRegressor", {**RUN.task[1], "learning_rate": 1e30})
    run = replace(RUN, task=task, trainer={**RUN.trainer, "max_epochs": 3}, watch=("gradients",))
    first, *others = train(run, tmp_path, tmp_path).gradients
    assert all(math.isfinite(norm) for norm in first)
    assert any(not math.isfinite(norm) for row in others for norm in row)


def test_the_whole_training_set_is_scored_where_it_is_asked_for(tmp_path):
    result = train(replace(RUN, trainer={**RUN.trainer, "max_epochs": 1}, watch=("train",)), tmp_path, tmp_path)
    assert {"test_mse", "train_mse"} <= result.scores.keys()
    seed_everything(RUN.seed, verbose=False)
    model, data = RUN.make_model(), RUN.make_data(tmp_path)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = Trainer(max_epochs=1, accelerator="cpu", log_every_n_steps=1, default_root_dir=tmp_path, **quiet)
    trainer.fit(model, data)
    inputs, targets = next(iter(data.train_dataloader()))
    assert result.scores["train_mse"] == pytest.approx((model(inputs) - targets).square().mean().item(), rel=1e-4)
