"""Results of finished runs, one JSON file each."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

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
        gradients: ‖∂L/∂h⁽ᵗ⁾‖ at evenly spaced t, a list for each reading; empty if not watched.
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


def result_path(folder: Path, run: PlannedRun) -> Path:
    """Returns where the result of a run is kept."""
    return folder / run.experiment / f"{run.name}.json"


def write_result(folder: Path, run: PlannedRun, result: Result) -> None:
    """Writes a result; the file appears whole or not at all."""
    path = result_path(folder, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    content: dict[str, Any] = {"cell": asdict(run), "result": asdict(result)}
    part.write_text(json.dumps(_rounded(content)) + "\n")
    part.replace(path)


def read_result(folder: Path, run: PlannedRun) -> Result | None:
    """Reads the result of a run, or returns None if it has not finished, or the file is damaged or an older one."""
    try:
        return Result(**json.loads(result_path(folder, run).read_text())["result"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _rounded(content: Any) -> Any:
    """Numbers to five digits: more say nothing, and results are kept by the hundred."""
    if isinstance(content, dict):
        return {name: _rounded(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_rounded(value) for value in content]
    return float(f"{content:.5g}") if isinstance(content, float) else content
