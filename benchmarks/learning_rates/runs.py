"""The runs of each table, and their lines in a file: what has a line is not trained again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.learning_rates import data, images
from benchmarks.learning_rates.programs import PROGRAMS, Program, of_classes
from benchmarks.learning_rates.training import FORMS, final, train

OPTIMIZERS = ("adam", "sgd")
SEEDS = range(3)
WIDTHS = (64, 256, 1024)
GRID = {"adam": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3), "sgd": (0.02, 0.04, 0.08, 0.16, 0.32)}
"""The learning rates tried at each width: one octave apart, so that neighbours differ by a factor of two."""


class Run(NamedTuple):
    """What is trained: a program's name, a form, an optimizer, its learning rate and a seed."""

    program: str
    form: str
    optimizer: str
    lr: float
    seed: int


def planned(table: str) -> Iterator[Run]:
    """The runs of a table, one seed after the other."""
    if table == "programs":
        for seed in SEEDS:
            for name, program in PROGRAMS.items():
                for optimizer in OPTIMIZERS:
                    yield from (Run(name, form, optimizer, program.rates[optimizer], seed) for form in FORMS)
    else:
        for width in WIDTHS:
            for optimizer in OPTIMIZERS:
                for form in FORMS:
                    yield from (Run(f"MLP {width}", form, optimizer, lr, 0) for lr in GRID[optimizer])


def program_of(run: Run) -> Program:
    """The program of a run; "MLP 64" is the MLP of that width, for 100 steps."""
    if run.program in PROGRAMS:
        return PROGRAMS[run.program]
    width = int(run.program.removeprefix("MLP "))
    return Program(partial(images.mlp, width), data.vectors, of_classes, {}, 100)


def read(path: Path) -> dict[Run, float]:
    """The final losses of the runs that have a line; of two lines of a run the last counts."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text().splitlines())
    return {Run(**{key: line[key] for key in Run._fields}): line["final"] for line in lines}


def carry_out(run: Run, path: Path, root: Path) -> None:
    """Trains, and appends a line."""
    start = time.process_time()
    losses = train(program_of(run), run.form, run.optimizer, run.lr, run.seed, root)
    seconds = time.process_time() - start
    step = max(len(losses) // 20, 1)
    curve = [round(sum(part) / len(part), 5) for i in range(0, len(losses), step) if (part := losses[i : i + step])]
    line = run._asdict() | {
        "final": round(final(losses), 5),
        "steps": len(losses),
        "curve": curve,
        "seconds": round(seconds, 1),
        "torch": torch.__version__,
    }
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
