from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from lightning_modules.reproduce.experiments import EXPERIMENTS
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result
from lightning_modules.reproduce.table import markdown
from lightning_modules.reproduce.train import train
from tests.small_data import write_multilabel, write_ucr, write_words

LIMITS = {"limit_train_batches": 2, "limit_val_batches": 1, "limit_test_batches": 1, "log_every_n_steps": 1}
SMALLER = {
    "SequenceRegressor": {"hidden_size": 32},
    "SequenceCopier": {"hidden_size": 16},
    "SequenceClassifier": {"hidden_size": 16},
    "ImageClassifier": {"depth": 2},
    "MultiLabelClassifier": {"depth": 2, "input_size": 6, "output_size": 3},
    "LanguageModel": {"hidden_size": 32, "vocabulary_size": 10},
}
FEWER = {
    "AddingProblem": {"length": 10},
    "CopyMemory": {"lag": 5},
    "PixelMNIST": {"val_size": 20},
    "FlatMNIST": {"val_size": 20},
    "PennTreebank": {"seq_len": 5},
    "UCRArchive": {},
    "MultiLabel": {},
}


def tiny(run: PlannedRun) -> PlannedRun:
    (task, arguments), (data, sizes) = run.task, run.data
    return replace(
        run,
        task=(task, arguments | SMALLER[task]),
        data=(data, sizes | FEWER[data]),
        trainer={**run.trainer, **LIMITS, "accelerator": "cpu", "max_epochs": 1},
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory, small_mnist):
    root = tmp_path_factory.mktemp("data")
    (root / "mnist").symlink_to(small_mnist)
    write_words(root / "ptb")
    for name in ("CBF", "Gun_Point", "ItalyPowerDemand"):
        write_ucr(root / "ucr", name, length=240, labels=(1, 2))
    write_multilabel(root / "multilabel")
    return root


@pytest.mark.parametrize("what", EXPERIMENTS)
def test_quick_versions_run(what, root, tmp_path):
    experiment = EXPERIMENTS[what]
    runs = experiment.runs(True, 0)
    chosen = [runs[0], runs[-1]]
    results = [train(tiny(run), root, tmp_path / run.name) for run in chosen]
    for result, run in zip(results, chosen, strict=True):
        assert (result.model, result.setting, result.seed) == (run.model, run.setting, 0)
        assert experiment.score in result.scores
        assert result.parameters > 0
        assert result.curves["train_loss"][0] in ([1], [2])
        assert bool(result.gradients) == ("gradients" in run.watch)
        assert ("margin" in result.curves) == ("margin" in run.watch)
    assert isinstance(experiment.draw(results), Figure)
    table = markdown(experiment, results, missing=len(runs) - 2)
    assert all(f"| {run.setting} | {run.model} |" in table for run in chosen)
    assert f"{len(runs) - 2} runs of the grid are not in this table." in table


def test_a_table_names_all_versions_that_it_was_trained_with():
    experiment = EXPERIMENTS["mlp-depth"]
    older = Result("MLP", "30", 0, {"test_accuracy": 0.9}, 0.01, 1, 0.0, 0.0, {}, [], [], 1.0, {"torch": "2.8"}, "cpu")
    newer = replace(older, seed=1, versions={"torch": "2.14"})
    for results in ([older, newer], [newer, older]):
        assert "Trained on cpu with torch 2.14 and 2.8." in markdown(experiment, results, missing=0)


@pytest.mark.parametrize("what", EXPERIMENTS)
@pytest.mark.parametrize("quick", [False, True])
def test_every_run_is_another_and_can_be_built(what, quick, tmp_path):
    runs = [run for seed in (0, 1) for run in EXPERIMENTS[what].runs(quick, seed)]
    assert len({run.name for run in runs}) == len(runs)
    assert {run.experiment for run in runs} == {what}
    for run in runs if quick else runs[:1]:
        run.make_model()
        run.make_data(tmp_path)


@pytest.mark.parametrize("what", EXPERIMENTS)
def test_numbers_of_the_paper_are_of_models_and_settings_of_the_grid(what):
    experiment = EXPERIMENTS[what]
    keys = {(run.model, run.setting) for run in experiment.runs(False, 0)}
    assert set(experiment.paper) <= keys
    assert set(experiment.paper_parameters) <= keys


def test_parameters_of_table_4():
    ucr = EXPERIMENTS["ucr"]
    for run in ucr.runs(False, 0):
        count = sum(p.numel() for p in run.make_model().parameters())
        assert count == ucr.paper_parameters[run.model, run.setting], run.name
    assert len(ucr.paper_parameters) == 84


def test_the_quick_adding_problem_draws_its_baseline(root, tmp_path):
    adding = EXPERIMENTS["adding"]
    figure = adding.draw([train(tiny(adding.runs(True, 0)[0]), root, tmp_path)])
    above, below = figure.axes
    levels = [line.get_ydata()[0] for line in above.get_lines() if line.get_label() == "trivial answer"]
    assert levels == [pytest.approx(1 / 6)]
    assert below.get_yscale() == "log"


def test_a_model_has_one_colour_in_all_panels():
    experiment = EXPERIMENTS["pixel-mnist"]
    every, some = (("RNN", "oRNN", "Spectral-RNN"), "784 steps"), (("Spectral-RNN",), "392 steps")
    curves = {"val_accuracy": ([1, 2, 3], [0.1, 0.2, 0.3])}
    results = [result(model, setting, curves) for models, setting in (every, some) for model in models]
    first, second = experiment.draw(results).axes
    assert [line.get_label() for line in first.lines] == ["RNN", "oRNN", "Spectral-RNN"]
    assert second.lines[0].get_color() == first.lines[2].get_color()


def result(model, setting, curves):
    return Result(
        model=model,
        setting=setting,
        seed=0,
        scores={},
        learning_rate=0.1,
        parameters=1,
        best=0.0,
        least_loss=0.0,
        curves=curves,
        gradients=[],
        gradient_steps=[],
        seconds=0.0,
        versions={},
        device="cpu",
    )
