import math
from dataclasses import replace

import pytest

from lightning_modules.reproduce.learning_rates import at_best_rates, at_rate, trials
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result

RUN = PlannedRun("x", "RNN", "a", 0, ("SequenceClassifier", {}), ("CopyMemory", {}), {}, "val_accuracy", "max")
GRID = [replace(RUN, setting=setting, seed=seed) for seed in (0, 1) for setting in ("a", "b")]


def result(run: PlannedRun, best: float, loss: float) -> Result:
    rate = run.task[1]["learning_rate"]
    return Result(run.model, run.setting, run.seed, {}, rate, 1, best, loss, {}, [], [], 1.0, {}, "cpu")


def rates(runs):
    return [run.task[1]["learning_rate"] for run in runs]


def test_trials_are_of_the_first_seed():
    tried = trials(GRID, (0.1, 0.01), None)
    assert [(run.setting, run.seed) for run in tried] == [("a", 0), ("a", 0), ("b", 0), ("b", 0)]
    assert rates(tried) == [0.1, 0.01] * 2
    assert [run.setting for run in trials(GRID, (0.1, 0.01), "b")] == ["b", "b"]
    assert trials([], (0.1,), None) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0.9, 0.5), (0.8, 0.1), 0.1),
        ((0.9, 0.5), (0.9, 0.1), 0.01),
        ((math.nan, math.nan), (0.1, 9.0), 0.01),
        ((0.9, math.nan), (0.9, 9.0), 0.01),
    ],
)
def test_the_best_epoch_decides_and_the_loss_between_equals(first, second, expected):
    tried = [(run := at_rate(RUN, 0.1), result(run, *first)), (run := at_rate(RUN, 0.01), result(run, *second))]
    for order in (tried, tried[::-1]):
        assert rates(at_best_rates(GRID, order, "a")) == [expected] * 4
    # a setting for which nothing was tried has no rate
    assert [run.setting for run in at_best_rates(GRID, tried, None)] == ["a", "a"]


def test_a_mode_of_min_takes_the_least():
    run = replace(RUN, mode="min")
    tried = [(c := at_rate(run, rate), result(c, rate, 1.0)) for rate in (0.1, 0.01, 0.03)]
    assert rates(at_best_rates([run], tried, None)) == [0.01]


def test_nothing_is_decided_before_all_trials_have_ended():
    first, second = at_rate(RUN, 0.1), at_rate(RUN, 0.01)
    assert at_best_rates(GRID, [(first, result(first, 0.9, 0.1)), (second, None)], None) == []


def test_what_else_is_chosen_is_tried_at_every_rate_and_taken_over():
    choices = {"RNN": [{"reflectors": 4}, {"reflectors": 8}]}
    tried = trials(GRID, (0.1, 0.01), None, choices, {"max_epochs": 1})
    arguments = [(run.task[1]["reflectors"], run.task[1]["learning_rate"]) for run in tried]
    assert arguments == [(4, 0.1), (4, 0.01), (8, 0.1), (8, 0.01)] * 2
    assert {run.trainer["max_epochs"] for run in tried} == {1}
    best = {(8, 0.1): 0.9}
    ended = [(run, result(run, best.get(pair, 0.5), 1.0)) for run, pair in zip(tried, arguments, strict=True)]
    found = at_best_rates(GRID, ended, None, choices)
    assert [run.task[1] for run in found] == [{"reflectors": 8, "learning_rate": 0.1}] * 4
    assert [run.trainer for run in found] == [{}] * 4  # as many epochs as the run has itself


def test_models_without_choices_have_none():
    assert [run.task[1] for run in trials(GRID[:1], (0.1,), None, {"LSTM": [{"reflectors": 4}]})] == [
        {"learning_rate": 0.1}
    ]
