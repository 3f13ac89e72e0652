"""What is known of a training run: collected from monitors at work, from a checkpoint, or from a CSV of metrics."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from spectral_param.extras import extra
from spectral_param.report.history import LOSS, History
from spectral_param.spectrum.statistics import STATISTICS, spectral_statistics

with extra("plot"):
    import numpy as np
    from numpy.typing import NDArray

Array = NDArray[np.float64]
Curve = tuple[Array, Array]

LOSSES = ("train_loss", "train_loss_step", "loss")  # columns of a CSV that may hold the training loss


@dataclass
class Run:
    """Readings of a run by name, and what else a report says.

    Attributes:
        name: of the run.
        sigma: (steps (n,), σ (n, k)) by weight.
        margins: (steps, ``max |σ - 1|``) by weight.
        weights: what each weight is and its last statistics, by weight.
        gradients: (steps, times (m,), ‖∂L/∂h⁽ᵗ⁾‖ (n, m)) by recurrent layer and state.
        norms: (steps, gradient norm) by weight or module.
        loss: (steps, loss), if known.
        settings: hyperparameters and the like, by name.
        versions: of the software, by package.
    """

    name: str = ""
    sigma: dict[str, Curve] = field(default_factory=dict)
    margins: dict[str, Curve] = field(default_factory=dict)
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    gradients: dict[str, tuple[Array, Array, Array]] = field(default_factory=dict)
    norms: dict[str, Curve] = field(default_factory=dict)
    loss: Curve | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def add_state(self, state: Mapping[str, Any]) -> None:
        """Takes in the state of a monitor, as it stands in a checkpoint."""
        history = History()
        history.load_state_dict(state["history"])
        self.versions |= state["versions"]
        for name in history.names:
            values = history[name].numpy().astype(np.float64)
            there = ~np.isnan(values).all(axis=1)
            if not there.any():
                continue
            steps, values = np.asarray(history.steps, dtype=np.float64)[there], values[there]
            if name == LOSS:
                if self.loss is None or len(self.loss[0]) < len(steps):
                    self.loss = steps, values[:, 0]
            elif "described" in state:
                self.sigma[name] = steps, values
                read = [row for row in history.readings(name) if row is not None and not row.isnan().all()]
                rows = [row.double().numpy() for row in read]
                self.margins[name] = steps, np.array([np.abs(row - state["center"]).max() for row in rows])
                described = state["described"].get(name, {})
                blocks = torch.as_tensor(rows[-1]).reshape(described.get("blocks", 1), -1)
                numbers = spectral_statistics(blocks, state["center"])
                kept = blocks.shape[-1]
                numbers["effective_rank"] *= described.get("values", kept) / kept
                self.weights[name] = {**described, **numbers}
            elif name in state["times"]:
                times = np.asarray(state["times"][name], dtype=np.float64)
                ordered = [i for i in np.argsort(times) if times[i] >= 0]
                self.gradients[name] = steps, times[ordered], values[:, ordered]
            else:
                self.norms[name] = steps, values[:, 0]

    def add_metrics(self, path: Path) -> None:
        """Takes in a ``metrics.csv``: the columns with the names that monitors give by default, and a training loss."""
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        through_time: dict[str, dict[int, Curve]] = {}
        for column in rows[0] if rows else ():
            what, _, where = column.partition("-")
            if column not in LOSSES and not (where and what in (*STATISTICS, "grad_norm")):
                continue
            readings = [(float(row["step"]), float(row[column])) for row in rows if row[column]]
            steps, values = np.array(readings).reshape(-1, 2).T
            if not readings:
                continue
            if column in LOSSES:
                self.loss = self.loss or (steps, values)
            elif what in STATISTICS:
                self.weights.setdefault(where, {})[what] = values[-1]
                if what == "spectral_margin":
                    self.margins[where] = steps, values
            elif at := re.fullmatch(r"(.+)\.t(-?\d+)", where):
                through_time.setdefault(at[1], {})[int(at[2])] = steps, values
            else:
                self.norms[where] = steps, values
        self.gradients |= {name: _side_by_side(curves) for name, curves in through_time.items()}


def _side_by_side(curves: Mapping[int, Curve]) -> tuple[Array, Array, Array]:
    """Steps, times and norms (steps, times) from a curve for each time; NaN where one lacks a step."""
    times = sorted(curves)
    steps = np.unique(np.concatenate([curves[t][0] for t in times]))
    norms = np.full((len(steps), len(times)), np.nan)
    for column, t in enumerate(times):
        norms[np.searchsorted(steps, curves[t][0]), column] = curves[t][1]
    return steps, np.array(times, dtype=np.float64), norms


def read_run(folder: str | Path) -> Run:
    """Reads a run from what the Trainer left in its ``log_dir``.

    Taken are the states of monitors in the newest checkpoint below the folder; without one, ``metrics.csv``, which
    holds less: margins, statistics and logged gradient norms, but no single σ.

    Raises:
        FileNotFoundError: if there is neither.
        ValueError: if the checkpoint holds objects other than tensors and plain values.
    """
    folder = Path(folder)
    run = Run(name=folder.resolve().name)
    checkpoints = sorted(folder.glob("**/*.ckpt"), key=lambda path: path.stat().st_mtime)
    if checkpoints:
        _add_checkpoint(run, checkpoints[-1])
    if not run.weights and not run.gradients and (folder / "metrics.csv").exists():
        run.add_metrics(folder / "metrics.csv")
    if not (run.weights or run.gradients or run.norms):
        raise FileNotFoundError(f"{folder}: found no checkpoint and no metrics.csv with readings of monitors.")
    return run


def _add_checkpoint(run: Run, path: Path) -> None:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(f"{path}: expected a checkpoint of tensors and plain values alone; {error}") from error
    for state in checkpoint.get("callbacks", {}).values():
        if isinstance(state, dict) and "history" in state:
            run.add_state(state)
    for key in ("hyper_parameters", "datamodule_hyper_parameters"):
        run.settings |= {str(name): str(value) for name, value in checkpoint.get(key, {}).items()}
    run.settings |= {"checkpoint": path.name, "steps": str(checkpoint.get("global_step", ""))}
