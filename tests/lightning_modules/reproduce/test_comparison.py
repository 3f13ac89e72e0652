import math

import numpy as np
import pytest

from lightning_modules.reproduce.comparison import against_the_paper, ranks, welch_level, welch_t
from lightning_modules.reproduce.results import Result


def result(model: str, name: str, accuracy: float, seed: int) -> Result:
    return Result(model, name, seed, {"test_accuracy": accuracy}, 0.01, 1, 0.0, 0.0, {}, [], [], 1.0, {}, "cpu")


PAPER = {"CBF": (0.7, 0.9), "Beef": (0.6, 0.7), "Coffee": (1.0, 1.0)}
# Coffee lacks a model, so it is left out
SCORES = {
    ("RNN", "CBF"): (0.5, 0.6, 0.7),
    ("RNN", "Beef"): (0.5, 0.6, 0.7),
    ("RNN", "Coffee"): (1.0,),
    ("Spectral-RNN", "CBF"): (0.9, 0.91, 0.92),
    ("Spectral-RNN", "Beef"): (0.4, 0.6, 0.8),
}
RESULTS = [result(*key, score, i) for key, scores in SCORES.items() for i, score in enumerate(scores)]


def test_models_are_compared_on_the_sets_that_all_have():
    lines = against_the_paper(RESULTS, ("RNN", "Spectral-RNN"), PAPER)
    assert lines[0] == "Over 2 sets:"
    rows = {row.split(" | ")[0].strip("| "): [word.strip("| ") for word in row.split(" | ")[1:]] for row in lines[2:]}
    assert rows["mean"] == ["0.600", "0.755"]
    assert rows["mean rank"] == ["1.75", "1.25"]
    assert rows["mean in the paper"] == ["0.650", "0.800"]
    assert rows["below the paper by more than 0.02, sets"] == ["1", "1"]
    assert rows["Spectral-RNN: better, worse (Welch's t)"] == ["1, 0", ""]


def test_nothing_is_compared_where_there_is_one_model():
    assert against_the_paper([RESULTS[0]], ("RNN", "Spectral-RNN"), PAPER) == []


def test_welch_t_of_samples_of_different_spread():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=5), 3 * rng.normal(size=7)
    expected = (a.mean() - b.mean()) / math.sqrt(a.var(ddof=1) / 5 + b.var(ddof=1) / 7)
    assert welch_t(a, b) == pytest.approx(expected)
    assert math.isnan(welch_t([1.0], [1.0, 2.0]))
    assert math.isnan(welch_t([1.0, 1.0], [2.0, 2.0]))


def test_the_level_is_that_of_the_degrees_of_freedom():
    spread, narrow = [0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.1, 0.2, 0.3, 0.4]
    assert welch_level(spread, spread) == pytest.approx(2.306)  # 8 of equal variances
    assert welch_level(spread, [1.0] * 5) == pytest.approx(2.776)  # 4 where one alone varies
    assert welch_level(spread, narrow) == pytest.approx(2.755, abs=0.005)  # 4.08 degrees, by the t distribution
    few, fewer = [0.0, 1.0], [0.0, 0.448]
    assert welch_level(few, fewer) == pytest.approx(6.86, rel=0.03)  # 1.39 degrees


def test_equal_scores_share_a_rank():
    assert ranks(np.array([[0.5], [0.5], [0.5], [0.9]])).ravel().tolist() == [3.0, 3.0, 3.0, 1.0]


@pytest.mark.parametrize(("seeds", "told"), [(3, "0, 0"), (5, "1, 0")])
def test_fewer_seeds_take_a_greater_difference(seeds, told):
    low, high = np.linspace(0.5, 0.7, seeds), np.linspace(0.7, 0.9, seeds)
    assert welch_t(high, low) > 2.31
    results = [result(m, "CBF", x, i) for m, row in (("RNN", low), ("LSTM", high)) for i, x in enumerate(row)]
    assert f"| LSTM: better, worse (Welch's t) | {told} |" in against_the_paper(results, ("RNN", "LSTM"), PAPER)[-1]
