"""Compiled by torch over eager: the same layer, in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.layer import BATCH, svd, training_step
from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param.nn import SpectralRNN

STEPS, WIDTH = 100, 128


class Last(nn.Module):
    """The last state of a recurrence."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.rnn = SpectralRNN(1, WIDTH, nonlinearity="tanh", reflectors=m)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, B, 1) to (B, n)."""
        return self.rnn(x)[1][0]


def sequence_step(model: nn.Module) -> Callable[[], object]:
    x, cotangent = torch.randn(STEPS, BATCH, 1), torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward(cotangent)
        optimizer.step()

    return step


def measure(quick: bool) -> Table:
    torch.set_flush_denormal(True)
    sizes = (256,) if quick else (256, 1024, 2048)
    table = Table(
        "Compiled",
        "A training step of a layer under `torch.compile(fullgraph=True)` over the same step of the same layer without "
        f"it: n×n layers on {BATCH} vectors, a SpectralRNN of {WIDTH} features over {STEPS} steps. What a call of "
        "compiled code costs by itself shows in the rows of nn.Linear. Denormals are flushed. Compiling is that of "
        "forward and backward; the first row has torch's own preparations too.",
        ["", "eager, ms", "compiled, ms", "compiled over eager", "compiling, s"],
    )
    for n in sizes:
        for name, layer in (
            (f"nn.Linear, n = {n}", nn.Linear(n, n)),
            (f"n = {n}, m = 16", svd(n, 16, None)),
            (f"n = {n}, all", svd(n, n, None)),
        ):
            _race(table, name, layer, lambda model, n=n: training_step(model, n), quick)
    for m in (16, WIDTH):
        _race(table, f"SpectralRNN, m = {m}", Last(m), sequence_step, quick)
    return table


def _race(
    table: Table, name: str, layer: nn.Module, step_of: Callable[[nn.Module], Callable[[], object]], quick: bool
) -> None:
    torch.set_num_threads(1)
    torch._dynamo.reset()
    steps = {"eager": step_of(layer), "compiled": step_of(torch.compile(layer, fullgraph=True))}
    start = time.perf_counter()
    with torch._inductor.config.patch(force_disable_caches=True):
        steps["compiled"]()
    seconds = time.perf_counter() - start
    race = Race(steps, seconds=2 if quick else 10, rounds=5)
    ratio = race.ratio("compiled", "eager")
    table.figures[f"compiled over eager, {name}"] = ratio
    table.figures[f"compiling, {name}"] = seconds
    times = [f"{1e3 * race.seconds(which):.2f}" for which in steps]
    table.rows.append([name, *times, f"{ratio:.2f}", f"{seconds:.1f}"])
