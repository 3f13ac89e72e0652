"""Which runs there are, and one of them: a trained network, a method, a rate and a seed, to a line of results."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.finetuning.methods import ALL, Method, hra, lora, oft, ours
from benchmarks.finetuning.task import Data, Task, fit

Line = dict[str, Any]
RATES = (1e-2, 3e-2, 1e-1)
SEEDS = (0, 1, 2)
METHODS: Mapping[str, Sequence[Method]] = {
    "digits": (
        ALL,
        ours(0, 0, 512),
        *(lora(1), hra(2), oft(4), ours(2, 0, 128)),
        *(lora(2), hra(4), oft(8), ours(2, 2, 8), ours(4, 0, 256)),
        *(lora(4), hra(8), oft(16), ours(4, 2, 512)),
    ),
    "text": (ALL, lora(2), hra(4), oft(8), ours(2, 2, 8), ours(2, 0, 128)),
}


def runs_left(task: Task, lines: Sequence[Line]) -> Iterator[tuple[Method, float, int]]:
    """Methods, rates and seeds without a line: each rate with the first seed, then the best of them with the others."""
    names = {line["name"] for line in lines}
    for method in METHODS[task.name]:
        for rate in rates(method):
            if name_of(task, method, rate, SEEDS[0]) not in names:
                yield method, rate, SEEDS[0]
        best = best_rate(task, method, lines)
        if best is not None:
            yield from ((method, best, seed) for seed in SEEDS[1:] if name_of(task, method, best, seed) not in names)


def rates(method: Method) -> tuple[float, ...]:
    """The learning rates that are tried; those of all weights are ten times lower."""
    return tuple(rate / 10 for rate in RATES) if method == ALL else RATES


def best_rate(task: Task, method: Method, lines: Sequence[Line]) -> float | None:
    """The rate that is best on validation with the first seed, or ``None`` while one is missing."""
    tried = [line for line in lines if is_of(line, task, method) and line["seed"] == SEEDS[0]]
    if not {line["rate"] for line in tried} >= set(rates(method)):
        return None
    best = task.best(line["val"] for line in tried)
    return next(line["rate"] for line in tried if line["val"] == best)


def is_of(line: Line, task: Task, method: Method) -> bool:
    """Whether a line is of this task and method."""
    return line["task"] == task.name and line["method"] == method.name


def name_of(task: Task, method: Method, rate: float, seed: int) -> str:
    """The name of a run."""
    return f"{task.name}: {method.name}, rate {rate:g}, seed {seed}"


def run(task: Task, base: nn.Module, method: Method, rate: float, seed: int) -> Line:
    """Fine-tunes a copy of ``base`` and measures it, before and after, on validation and test."""
    torch.manual_seed(seed)
    data = task.data()
    model, groups = method.adapt(copy.deepcopy(base), task.weights, rate)
    before = _measured(task, model, data)
    started = time.process_time()
    fit(task, model, groups, data["train"], rate=rate, epochs=task.epochs)
    return {
        "name": name_of(task, method, rate, seed),
        "task": task.name,
        "method": method.name,
        "settings": {"kind": method.kind, **method.settings, "sigma_rate": method.sigma_rate},
        "rate": rate,
        "seed": seed,
        "numbers": sum(p.numel() for group in groups for p in group["params"]),
        "before": before["test"],
        **_measured(task, model, data),
        "seconds": round(time.process_time() - started, 1),
        "versions": {package: version(package) for package in ("torch", "peft") if find_spec(package)},
    }


def trained_base(task: Task, folder: Path) -> nn.Module:
    """The network that all methods start from, trained once and kept in ``folder``."""
    path = folder / f"{task.name}.pt"
    if path.exists():
        model = task.network()
        model.load_state_dict(torch.load(path))
    else:
        torch.manual_seed(0)
        model = task.base()
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    return model.eval()


def read(path: Path) -> list[Line]:
    """The lines of a file of results; of two lines of one run the last counts."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return list({line["name"]: line for line in lines}.values())


def add(path: Path, line: Line) -> None:
    """Adds a line to a file of results."""
    with path.open("a") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


@torch.no_grad()
def _measured(task: Task, model: nn.Module, data: Mapping[str, Data]) -> dict[str, float]:
    return {part: round(task.measure(model, *data[part]), 4) for part in ("val", "test")}
