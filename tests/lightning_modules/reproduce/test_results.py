import json
import multiprocessing
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from lightning_modules.reproduce.experiments import EXPERIMENTS
from lightning_modules.reproduce.learning_rates import at_rate
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result, read_result, read_results, results_path, write_result

RESULTS = Path(__file__).parents[3] / "results"
RUN = PlannedRun("adding", "RNN", "L = 10", 0, ("SequenceRegressor", {}), ("AddingProblem", {}), {}, "val_mse")
CURVES = {"val_mse": ([1, 2], [0.3, 0.2])}
RESULT = Result("RNN", "L = 10", 0, {"mse": 0.1}, 0.001, 9, 0.2, 0.2, CURVES, [], [], 1.0, {}, "cpu")


def runs(count: int) -> list[PlannedRun]:
    return [replace(RUN, seed=seed) for seed in range(count)]


def test_a_result_is_a_line_and_is_read_back(tmp_path):
    for run in runs(3):
        write_result(tmp_path, run, replace(RESULT, seed=run.seed, best=1 / 3))
    lines = results_path(tmp_path, "adding").read_text().splitlines()
    assert [json.loads(line)["run"]["seed"] for line in lines] == [0, 1, 2]
    assert read_result(tmp_path, runs(3)[2]).best == 0.33333  # to five digits
    assert json.dumps(read_result(tmp_path, RUN).curves) == '{"val_mse": [[1, 2], [0.3, 0.2]]}'
    assert read_result(tmp_path, replace(RUN, seed=3)) is None
    assert read_results(tmp_path, "copy") == {}


def test_of_two_lines_of_a_run_the_last_counts(tmp_path):
    for best in (0.5, 0.4):
        write_result(tmp_path, RUN, replace(RESULT, best=best))
    assert read_result(tmp_path, RUN).best == 0.4


@pytest.mark.parametrize("line", ["", "{", '{"name": "x", "result": {"model": "RNN"}}', "[]", "\x00", '{"name": "x"}'])
def test_a_damaged_or_older_line_is_no_result_and_is_named(tmp_path, line):
    for run in runs(2):
        write_result(tmp_path, run, RESULT)
    path = results_path(tmp_path, "adding")
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{line}\n{second}\n")
    with pytest.warns(UserWarning, match=r"adding\.jsonl, line 2: expected a result, got "):
        assert read_results(tmp_path, "adding").keys() == {run.name for run in runs(2)}


def test_a_file_whose_end_was_cut_off_takes_new_lines(tmp_path):
    write_result(tmp_path, RUN, RESULT)
    path = results_path(tmp_path, "adding")
    path.write_text(path.read_text() + path.read_text()[:50])
    write_result(tmp_path, runs(2)[1], RESULT)
    with pytest.warns(UserWarning, match="line 2: expected a result"):
        assert read_results(tmp_path, "adding").keys() == {run.name for run in runs(2)}


def test_the_run_is_kept_to_the_digit(tmp_path):
    run = replace(RUN, task=(RUN.task[0], {"decay": 0.994026}))
    write_result(tmp_path, run, RESULT)
    kept = json.loads(results_path(tmp_path, "adding").read_text())
    assert PlannedRun(**kept["run"]).name == kept["name"] == run.name


def append(folder: Path, first: int, count: int) -> None:
    for run in runs(first + count)[first:]:
        write_result(folder, run, RESULT)


def test_processes_that_append_at_once_lose_no_line(tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=append, args=(tmp_path, first, 60)) for first in (0, 60)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert len(results_path(tmp_path, "adding").read_text().splitlines()) == 120
    assert read_results(tmp_path, "adding").keys() == {run.name for run in runs(120)}


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of file sizes")
def test_a_full_disk_leaves_the_results_as_they_were(tmp_path):
    import resource

    write_result(tmp_path, RUN, RESULT)
    before = results_path(tmp_path, "adding").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))  # half of a line
    try:
        with pytest.raises(OSError, match="File too large"):
            write_result(tmp_path, runs(2)[1], RESULT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert results_path(tmp_path, "adding").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["adding.jsonl"]


@pytest.mark.parametrize(("owner", "step"), [(json, "dumps"), (os, "fsync"), (Path, "replace")])
def test_a_result_is_whole_or_not_there(tmp_path, monkeypatch, owner, step):
    write_result(tmp_path, RUN, RESULT)
    before = results_path(tmp_path, "adding").read_bytes()

    def fails(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, fails)
        with pytest.raises(KeyboardInterrupt):
            write_result(tmp_path, runs(2)[1], RESULT)
    assert results_path(tmp_path, "adding").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
    write_result(tmp_path, runs(2)[1], RESULT)
    assert read_results(tmp_path, "adding").keys() == {run.name for run in runs(2)}


# how many runs this repository keeps at least
KEPT = {
    "adding": 60,
    "copy": 56,
    "lengths": 8,
    "mlp-depth": 30,
    "multi-label": 46,
    "pixel-mnist": 17,
    "ptb": 4,
    "ptb-m32": 21,
    "radius": 24,
    "reflectors": 25,
    "spectral-margin": 6,
    "trainable": 56,
    "depth-controls": 124,
    "multi-label-at-k": 55,
    "ucr": 588,
    "ucr-steps": 533,
}


@pytest.mark.skipif(not RESULTS.is_dir(), reason="no results beside the package")
@pytest.mark.parametrize("what", EXPERIMENTS)
def test_no_result_is_lost(what):
    path = results_path(RESULTS, what)
    lines = path.read_text().splitlines() if path.exists() else []
    assert len(lines) >= KEPT.get(what, 0)
    assert len(read_results(RESULTS, what)) == len(lines)  # each of another run, and none damaged
    for line in lines:
        content = json.loads(line)
        assert PlannedRun(**content["run"]).name == content["name"]
        assert content["result"]["setting"] == content["run"]["setting"]


@pytest.mark.skipif(not RESULTS.is_dir(), reason="no results beside the package")
def test_kept_results_are_found_by_the_grids_of_today():
    found = 0
    for what, experiment in EXPERIMENTS.items():
        rates = experiment.learning_rates
        grid = [run for quick in (False, True) for seed in range(5) for run in experiment.runs(quick, seed)]
        names = {run.name for run in [*grid, *(at_rate(run, rate) for run in grid for rate in rates)]}
        found += len(names & read_results(RESULTS, what).keys())
    assert found >= 834  # the others were trained with arguments that the experiments no longer have


def test_the_name_of_a_run_stays_as_it_was():
    """By it a result is found again: neither fields nor their order nor their names may change it."""
    run = EXPERIMENTS["adding"].runs(False, 0)[0]
    assert list(asdict(run))[:4] == ["experiment", "model", "setting", "seed"]
    assert at_rate(run, 0.001).name in read_results(RESULTS, "adding")
