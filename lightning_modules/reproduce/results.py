"""Results of finished runs: one file an experiment, ``EXPERIMENT.jsonl``, a JSON line a run."""

import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from lightning_modules.reproduce.planned_run import PlannedRun


@dataclass(frozen=True)
class Result:
    """What came out of a run.

    Args:
        model: the model's name in the table.
        setting: the setting's name in the table.
        seed: seed of the run.
        scores: metrics of the test set, and of trivial answers (``baseline_…``).
        learning_rate: that of the first epoch.
        parameters: how many numbers were trained.
        best: what decided which epoch was tested, in that epoch.
        least_loss: the least loss in validation.
        curves: losses and metrics by name, each a pair of lists, steps and values, of at most 50 epochs.
        gradients: ‖∂L/∂h⁽ᵗ⁾‖ at evenly spaced t, a list for each reading, NaN where there was none; empty if not
            watched.
        gradient_steps: the training steps of these readings.
        seconds: wall time.
        versions: versions of the software, by package.
        device: what it ran on.
    """

    model: str
    setting: str
    seed: int
    scores: dict[str, float]
    learning_rate: float
    parameters: int
    best: float
    least_loss: float
    curves: dict[str, tuple[list[int], list[float]]]
    gradients: list[list[float]]
    gradient_steps: list[int]
    seconds: float
    versions: dict[str, str]
    device: str


def results_path(folder: Path, experiment: str) -> Path:
    """Returns where the results of an experiment are kept."""
    return folder / f"{experiment}.jsonl"


def run_folder(folder: Path, run: PlannedRun) -> Path:
    """Returns where the checkpoints of a run are kept while it has no result."""
    return folder / run.experiment / run.name


def write_result(folder: Path, run: PlannedRun, result: Result) -> None:
    """Appends a result to those of its experiment.

    Processes that append at once do so one after the other, by a lock. The file with the new line takes the place of
    the one without: whatever ends the writing, a full disk too, no line is ever cut.
    """
    line = json.dumps({"name": run.name, "run": asdict(run), "result": _rounded(asdict(result))})
    path = results_path(folder, run.experiment)
    (folder / run.experiment).mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with FileLock(folder / run.experiment / "results.lock"):
        lines = path.read_bytes().splitlines() if path.exists() else []
        try:
            with part.open("wb") as file:
                file.write(b"\n".join([*lines, line.encode(), b""]))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def read_results(folder: Path, experiment: str) -> dict[str, Result]:
    """Reads the results of an experiment, by the names of their runs.

    The last line of a run counts. A line that is damaged, or that an older version wrote, is passed by with a warning
    that names it: its run has no result.
    """
    path = results_path(folder, experiment)
    found = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], start=1):
        try:
            content = json.loads(line)
            found[content["name"]] = Result(**content["result"])
        except (ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{path}, line {number}: expected a result, got {line[:40]!r} ({error!r}).", stacklevel=2)
    return found


def read_result(folder: Path, run: PlannedRun) -> Result | None:
    """Reads the result of a run, or returns None if it has none."""
    return read_results(folder, run.experiment).get(run.name)


def _rounded(content: Any) -> Any:
    """Numbers to five digits: more say nothing, and results are kept by the hundred."""
    if isinstance(content, dict):
        return {name: _rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    return float(f"{content:.5g}") if isinstance(content, float) else content
