"""The main figures once more: one thread's processor time, and the wall time of two threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from benchmarks import deep, layer, recurrent
from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import together

Steps = Mapping[str, Callable[[], object]]


def recurrent_steps(n: int, steps: int, *names: str) -> Steps:
    return {name: recurrent.training_step(recurrent.LAYERS[name](n), n, steps) for name in names}


def layer_steps(n: int, *names: str) -> Steps:
    return {name: layer.training_step(layer.LAYERS[name](n), n) for name in names}


def deep_steps() -> Steps:
    networks = {"m = 16, together": deep.network(16), "m = n, together": deep.network(deep.WIDTH)}
    steps = {name: deep.training_step(network, together) for name, network in networks.items()}
    return {**steps, "plain": deep.training_step(deep.network(), nullcontext)}


RNNS = ("SpectralRNN, m = 16", "SpectralRNN, m = 16, with W", "nn.RNN")
JOBS: dict[str, Callable[[], Steps]] = {
    "n = 128, T = 100": lambda: recurrent_steps(128, 100, *RNNS, "nn.LSTM"),
    "n = 128, T = 784": lambda: recurrent_steps(128, 784, *RNNS, "nn.LSTM"),
    "n = 512, T = 100": lambda: recurrent_steps(512, 100, *RNNS),
    "Linear, n = 512": lambda: layer_steps(512, "m = 16", "m = n", "nn.Linear"),
    "Linear, n = 1024": lambda: layer_steps(1024, "m = 16", "m = n", "nn.Linear"),
    "Linear, n = 2048": lambda: layer_steps(2048, "m = 16", "m = 16, with W", "nn.Linear"),
    f"{deep.DEPTH} layers of {deep.WIDTH}": deep_steps,
}
QUICK = ("n = 128, T = 100", "Linear, n = 512")
PLAIN = ("nn.LSTM", "nn.RNN", "nn.Linear", "plain")


def measure(quick: bool) -> Table:
    table = Table(
        "Two threads",
        "Ratios of the times of a training step, as in the tables above: of one thread's processor time, and of the "
        "wall time with two threads, which depends on what else the machine does.",
        ["", "", "over", "one thread", "two threads, wall", "two threads, ms"],
    )
    if (os.cpu_count() or 1) < 2:
        table.note += " This machine has one processor: not measured."
        return table
    for job, make in JOBS.items():
        if not quick or job in QUICK:
            _rows(table, job, make(), seconds=0.5 if quick else 5)
    return table


def _rows(table: Table, job: str, steps: Steps, seconds: float) -> None:
    races = [Race(steps, seconds, threads=threads) for threads in (1, 2)]
    for name in (name for name in steps if name not in PLAIN):
        for other in (other for other in steps if other in PLAIN):
            ratios = [f"{race.ratio(name, other):.2f}" for race in races]
            table.rows.append([job, name, other, *ratios, f"{1e3 * races[1].seconds(name):.1f}"])
