import math
from dataclasses import replace

import pytest

from lightning_modules.reproduce.learning_rates import at_best_rates, at_rate, trials
from lightning_modules.reproduce.planned_run import GridCell
from lightning_modules.reproduce.results import Result

CELL = GridCell("x", "RNN", "a", 0, ("SequenceClassifier", {}), ("CopyMemory", {}), {}, "val_accuracy", "max")
GRID = [replace(CELL, setting=setting, seed=seed) for seed in (0, 1) for setting in ("a", "b")]


def result(cell: GridCell, best: float, loss: float) -> Result:
    rate = cell.task[1]["learning_rate"]
    return Result(cell.model, cell.setting, cell.seed, {}, rate, 1, best, loss, {}, [], [], 1.0, {}, "cpu")


def rates(cells):
    return [cell.task[1]["learning_rate"] for cell in cells]


def test_trials_are_of_the_first_seed():
    tried = trials(GRID, (0.1, 0.01), None)
    assert [(cell.setting, cell.seed) for cell in tried] == [("a", 0), ("a", 0), ("b", 0), ("b", 0)]
    assert rates(tried) == [0.1, 0.01] * 2
    assert [cell.setting for cell in trials(GRID, (0.1, 0.01), "b")] == ["b", "b"]
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
    tried = [(cell := at_rate(CELL, 0.1), result(cell, *first)), (cell := at_rate(CELL, 0.01), result(cell, *second))]
    for order in (tried, tried[::-1]):
        assert rates(at_best_rates(GRID, order, "a")) == [expected] * 4
    # a setting for which nothing was tried has no rate
    assert [cell.setting for cell in at_best_rates(GRID, tried, None)] == ["a", "a"]


def test_a_mode_of_min_takes_the_least():
    cell = replace(CELL, mode="min")
    tried = [(c := at_rate(cell, rate), result(c, rate, 1.0)) for rate in (0.1, 0.01, 0.03)]
    assert rates(at_best_rates([cell], tried, None)) == [0.01]


def test_nothing_is_decided_before_all_trials_have_ended():
    first, second = at_rate(CELL, 0.1), at_rate(CELL, 0.01)
    assert at_best_rates(GRID, [(first, result(first, 0.9, 0.1)), (second, None)], None) == []
