"""The machinery of the tables of learning rates, and that their page is made of the lines that are there."""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.learning_rates import page, runs
from benchmarks.learning_rates.programs import PROGRAMS, Program, of_classes
from benchmarks.learning_rates.training import FORMS, final, train

ROOT = Path(__file__).parents[2]


def small(steps=8):
    def data(root):
        return lambda generator: (torch.randn(4, 6, generator=generator), torch.arange(4) % 3)

    return Program(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), data, of_classes, {}, steps)


def test_the_page_is_that_of_the_results(tmp_path):
    page.write(tmp_path / "page.md", ROOT / "results")
    assert (tmp_path / "page.md").read_text() == (ROOT / "docs" / "learning_rates.md").read_text()


def test_every_program_is_trained_in_every_form():
    plan = list(runs.planned("programs"))
    assert len(PROGRAMS) == 10
    assert len(set(plan)) == len(plan) == 10 * len(FORMS) * 2 * 3


@pytest.mark.filterwarnings("ignore:.*too few reflectors")
def test_forms_see_the_same_batches_from_the_same_start():
    plain, exact, again = (train(small(), form, "sgd", 0.05, 0, Path()) for form in ("plain", "all", "all"))
    assert exact == again
    assert exact[0] == pytest.approx(plain[0], rel=1e-5)
    assert len(exact) == 8
    assert exact[-1] < exact[0]


def test_the_final_loss_is_the_mean_of_the_last_tenth():
    assert final([5.0] * 18 + [1.0, 3.0]) == 2.0
    assert final([1.0, math.nan]) == math.inf


def test_of_two_lines_of_a_run_the_last_counts(tmp_path):
    run = runs.Run("MLP", "all", "adam", 1e-3, 0)
    lines = [json.dumps(run._asdict() | {"final": loss}) for loss in (2.0, 1.0)]
    (tmp_path / "programs.jsonl").write_text("\n".join(lines) + "\n")
    assert runs.read(tmp_path / "programs.jsonl") == {run: 1.0}


def test_a_miss_is_told(tmp_path):
    losses = {"plain": 1.0, "all": 1.02, "16": 1.03}
    best = {"plain": 1, "all": 2, "16": 3}
    programs = [
        runs.Run("MLP", form, optimizer, lr, 0)._asdict() | {"final": losses[form]}
        for form in FORMS
        for optimizer, lr in PROGRAMS["MLP"].rates.items()
    ]
    widths = [
        runs.Run("MLP 64", form, "adam", lr, 0)._asdict() | {"final": abs(i - best[form])}
        for form in FORMS
        for i, lr in enumerate(runs.GRID["adam"])
    ]
    for table, lines in (("programs", programs), ("widths", widths)):
        (tmp_path / f"{table}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    page.write(tmp_path / "page.md", tmp_path)
    text = (tmp_path / "page.md").read_text()
    assert "| MLP | 1 | 0.001 | 1 | 1.020 | **1.030** | 0.05 | 1 | 1.020 | **1.030** |" in text
    assert "Adam, all: 1 of 1; Adam, 16: 0 of 1" in text
    assert "| 64 | all | 2.000 | 1.000 | **0.000** | 1.000 | 2.000 | reached |" in text
    assert "| 64 | 16 | 3.000 | 2.000 | 1.000 | **0.000** | 1.000 | missed |" in text
