import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_modules.cli import main
from lightning_modules.reproduce import command
from lightning_modules.reproduce.experiments import EXPERIMENTS
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.processes import error_path, train_all
from lightning_modules.reproduce.results import Result, read_result, write_result

TINY = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "limit_test_batches": 1}


def runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Two runs that take no time."""
    return [
        PlannedRun(
            experiment="adding",
            model=model,
            setting="L = 10",
            seed=seed,
            task=("SequenceRegressor", {"input_size": 2, "output_size": 1, "hidden_size": 16, "cell": cell}),
            data=("AddingProblem", {"length": 10, "train_size": 256, "seed": seed}),
            trainer={**TINY, "accelerator": "cpu"},
            monitor="val_mse",
        )
        for model, cell in (("RNN", "rnn"), ("Spectral-RNN", "spectral-rnn"))
    ]


def result(run: PlannedRun, best: float = 0.2) -> Result:
    return Result(
        model=run.model,
        setting=run.setting,
        seed=run.seed,
        scores={"test_mse": 0.1 + run.seed / 10, "baseline_mse": 1 / 6},
        learning_rate=run.task[1].get("learning_rate", 0.001),
        parameters=1234,
        best=best,
        least_loss=best,
        curves={"val_mse": ([1, 2], [0.3, best])},
        gradients=[],
        gradient_steps=[],
        seconds=60.0,
        versions={"torch": "2"},
        device="cpu",
    )


@pytest.fixture
def small_adding(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS, "adding", replace(EXPERIMENTS["adding"], runs=runs, learning_rates=(), seeds=1))
    return tmp_path / "results"


@pytest.fixture
def trained(monkeypatch) -> list[PlannedRun]:
    """Runs that the command has trained, in no time."""
    seen = []

    def train_all(runs, root, folder, processes, seconds, native, flush_denormal):
        for run in runs:
            seen.append(run)
            write_result(folder, run, result(run))
            yield run, True

    monkeypatch.setattr(command, "train_all", train_all)
    return seen


def test_trains_in_processes_and_reports(small_adding):
    broken = replace(runs(True, 0)[0], model="broken", task=("SequenceRegressor", {"input_size": 3, "output_size": 1}))
    ended = dict(
        (run.model, done) for run, done in train_all([*runs(True, 0), broken], small_adding, small_adding, 2, 600.0)
    )
    assert ended == {"RNN": True, "Spectral-RNN": True, "broken": False}
    error = error_path(small_adding, broken).read_text()
    assert "RuntimeError" in error or "ValueError" in error
    assert [path.name for path in small_adding.rglob("*.ckpt")] == []
    found = read_result(small_adding, runs(True, 0)[1])
    assert found.parameters == 2 * (16 * 16 - 120) + 16 + 16 * 2 + 16 + 17
    assert found.scores["baseline_mse"] == pytest.approx(1 / 6, rel=1e-4)
    assert {"torch", "lightning", "spectral_param"} <= found.versions.keys()
    assert found.seconds > 0
    main(["reproduce", "adding", "--seeds", "1"])  # nothing is left to train
    table = (small_adding / "adding.md").read_text()
    assert "| L = 10 | Spectral-RNN |" in table
    assert (small_adding / "adding.png").stat().st_size > 0


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_native_forms_train_to_the_same(small_adding, tmp_path):
    losses = []
    for native in (None, tmp_path / "native"):
        folder = small_adding / str(native is None)
        assert [done for _, done in train_all(runs(True, 0)[1:], folder, folder, 1, 600.0, native)] == [True]
        losses.append(read_result(folder, runs(True, 0)[1]).scores["test_mse"])
    assert len(list((tmp_path / "native").glob("*.so"))) == 1
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_native_without_a_compiler(small_adding, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "adding", "--native"])
    assert "error: --native: build: expected a C++ compiler at 'no-such-compiler'" in capsys.readouterr().err
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "adding", "--native"])
    assert "error: --native: " in capsys.readouterr().err


def test_time_that_is_up_ends_what_is_running(small_adding):
    slow = replace(runs(True, 0)[0], trainer={"max_epochs": 10_000, "accelerator": "cpu"})
    before = set(multiprocessing.active_children())
    started = time.monotonic()
    assert list(train_all([slow], small_adding, small_adding, 1, 0.5)) == []
    assert time.monotonic() - started < 60
    assert set(multiprocessing.active_children()) <= before
    assert not list(small_adding.rglob("*.json*"))


KILLED = """
import dataclasses, sys, threading
from pathlib import Path
from lightning_modules.reproduce.processes import train_all
from tests.lightning_modules.reproduce.test_command import runs

if __name__ == "__main__":
    slow = dataclasses.replace(runs(True, 0)[0], trainer={"max_epochs": 100_000, "accelerator": "cpu"})
    list(train_all([slow], Path(), Path(sys.argv[1]), 1, 600.0))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes where Linux shows them")
def test_a_killed_command_leaves_nothing_running(tmp_path):
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": str(root)}
    ) as run:
        try:
            descendants = _wait_for(lambda: [pid for pid in _children(run.pid) for pid in _children(pid)])
        finally:
            run.kill()
    assert _wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in descendants))


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for(condition):
    deadline = time.monotonic() + 60
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def test_goes_on_where_it_stopped(small_adding, trained):
    finished = runs(False, 0)[0]
    write_result(small_adding, finished, result(finished))
    main(["reproduce", "adding", "--seeds", "2"])
    assert [(run.model, run.seed) for run in trained] == [("Spectral-RNN", 0), ("RNN", 1), ("Spectral-RNN", 1)]
    main(["reproduce", "adding", "--seeds", "2"])
    assert len(trained) == 3
    table = (small_adding / "adding.md").read_text()
    assert "| 0.1500 ± 0.0707 | 0.1667 | 0.001 | 2 | 1.0 |" in table


@pytest.mark.usefixtures("trained")
def test_the_report_may_be_elsewhere(small_adding, tmp_path):
    main(["reproduce", "adding", "--report", "docs"])
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["adding.md", "adding.png"]
    assert [path.name for path in small_adding.glob("adding.*")] == ["adding.jsonl"]


def test_an_interrupt_loses_no_finished_run(small_adding, monkeypatch):
    def interrupted(runs, root, folder, processes, seconds, native, flush_denormal):
        write_result(folder, runs[0], result(runs[0]))
        yield runs[0], True
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train_all", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main(["reproduce", "adding"])
    assert read_result(small_adding, runs(False, 0)[0]) is not None
    assert "1 runs of the grid are not in this table" in (small_adding / "adding.md").read_text()


def test_failures_are_said(small_adding, monkeypatch, capsys):
    monkeypatch.setattr(command, "train_all", lambda runs, *_: iter([(run, False) for run in runs]))
    with pytest.raises(SystemExit, match="1"):
        main(["reproduce", "adding"])
    assert "failed" in capsys.readouterr().err


def test_only_some_models(small_adding, trained, capsys):
    main(["reproduce", "adding", "--models", "spectral-rnn"])
    assert [run.model for run in trained] == ["Spectral-RNN"]
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "adding", "--models", "GRU"])
    assert "--models: expected some of RNN, Spectral-RNN, got GRU" in capsys.readouterr().err


def test_only_some_settings(small_adding, trained, capsys):
    main(["reproduce", "adding", "--seeds", "1", "--settings", "l = 10"])
    assert len(trained) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "adding", "--settings", "L = 11"])
    assert "--settings: expected some of L = 10, got L = 11" in capsys.readouterr().err


def test_a_report_keeps_what_was_trained_before(small_adding, trained):
    for model in ("RNN", "Spectral-RNN"):
        main(["reproduce", "adding", "--seeds", "1", "--models", model])
    table = (small_adding / "adding.md").read_text()
    assert "| L = 10 | RNN |" in table
    assert "| L = 10 | Spectral-RNN |" in table


def test_seeds_run_at_the_learning_rate_that_validation_prefers(small_adding, monkeypatch):
    seen = []

    def train_all(runs, root, folder, processes, seconds, native, flush_denormal):
        for run in runs:
            rate = run.task[1]["learning_rate"]
            seen.append((run.model, run.seed, rate))
            write_result(folder, run, result(run, best=rate if run.model == "RNN" else 1 - rate))
            yield run, True

    monkeypatch.setattr(command, "train_all", train_all)
    tuned = replace(EXPERIMENTS["adding"], runs=runs, learning_rates=(0.1, 0.01), tuned_on="L = 10")
    monkeypatch.setitem(EXPERIMENTS, "adding", tuned)
    main(["reproduce", "adding", "--seeds", "2"])
    trials = [(model, 0, rate) for model in ("RNN", "Spectral-RNN") for rate in (0.1, 0.01)]
    assert seen == [*trials, ("RNN", 1, 0.01), ("Spectral-RNN", 1, 0.1)]
    table = (small_adding / "adding.md").read_text()
    assert "| 0.1667 | 0.01 | 2 | 1.0 |" in table
    assert "| 0.1667 | 0.1 | 2 | 1.0 |" in table


def test_settings_take_the_rates_of_the_one_that_decides(small_adding, trained, monkeypatch):
    def two_lengths(quick, seed):
        return [replace(run, setting=setting) for setting in ("L = 10", "L = 20") for run in runs(quick, seed)]

    tuned = replace(EXPERIMENTS["adding"], runs=two_lengths, learning_rates=(0.1, 0.01), tuned_on="L = 10")
    monkeypatch.setitem(EXPERIMENTS, "adding", tuned)
    main(["reproduce", "adding", "--seeds", "1", "--models", "RNN", "--settings", "L = 20"])
    assert [(run.setting, run.task[1]["learning_rate"]) for run in trained] == [
        ("L = 10", 0.1),
        ("L = 10", 0.01),
        ("L = 20", 0.1),
    ]
    assert "| L = 20 | RNN |" in (small_adding / "adding.md").read_text()


def test_an_interrupt_in_the_trials_reports_what_is_decided(small_adding, monkeypatch):
    def interrupted(runs, root, folder, processes, seconds, native, flush_denormal):
        for run in runs[:3]:
            write_result(folder, run, result(run))
            yield run, True
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train_all", interrupted)
    tuned = replace(EXPERIMENTS["adding"], learning_rates=(0.1, 0.01))
    monkeypatch.setitem(EXPERIMENTS, "adding", tuned)
    with pytest.raises(SystemExit, match="130"):
        main(["reproduce", "adding"])
    table = (small_adding / "adding.md").read_text()
    assert "| L = 10 | RNN |" in table
    assert "| Spectral-RNN |" not in table  # of its two rates one has been tried
    assert "1 runs of the grid are not in this table." in table


def test_finished_runs_are_reported_without_their_data(small_adding, trained, monkeypatch):
    tuned = replace(EXPERIMENTS["adding"], learning_rates=(0.1, 0.01))
    monkeypatch.setitem(EXPERIMENTS, "adding", tuned)
    main(["reproduce", "adding"])
    monkeypatch.setattr(command, "_prepare", lambda runs, root: pytest.fail("no data are needed") if runs else None)
    main(["reproduce", "adding"])
    assert trained


def test_scores_that_are_not_numbers_are_said(small_adding, monkeypatch):
    def train_all(runs, root, folder, processes, seconds, native, flush_denormal):
        for run in runs:
            write_result(folder, run, replace(result(run), scores={"test_mse": [math.nan, 0.1][run.seed]}))
            yield run, True

    monkeypatch.setattr(command, "train_all", train_all)
    main(["reproduce", "adding", "--seeds", "2"])
    assert "| nan ± nan |" in (small_adding / "adding.md").read_text()


def test_the_quick_version_tries_no_learning_rates(small_adding, trained, monkeypatch):
    tuned = replace(EXPERIMENTS["adding"], learning_rates=(0.1, 0.01))
    monkeypatch.setitem(EXPERIMENTS, "adding", tuned)
    main(["reproduce", "adding", "--quick"])
    assert trained == runs(True, 0)


@pytest.mark.parametrize(
    "words",
    [["addition"], ["adding", "--seeds", "0"], ["adding", "--max-hours", "x"], ["adding", "--max-hours", "nan"], []],
)
def test_wrong_arguments(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", *words])
    assert "error" in capsys.readouterr().err


def test_missing_data_are_said_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "mlp-depth", "--data", "/proc/nothing"])
    assert "expected MNIST/raw/train-images-idx3-ubyte in /proc/nothing/mnist" in capsys.readouterr().err
