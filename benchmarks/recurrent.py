"""Recurrent layers in training, over long sequences."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks import one_by_one
from benchmarks.peers import ReflectorRNN
from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import Band
from spectral_param.nn import SpectralRNN

BATCH = 128
JOBS = ((128, 100), (128, 300), (128, 784), (512, 100))  # n, T


def spectral(n: int, matrix_free: bool | None, m: int = 16) -> SpectralRNN:
    return SpectralRNN(1, n, nonlinearity="relu", reflectors=m, sigma=Band(0.01), matrix_free=matrix_free)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "nn.RNN": lambda n: nn.RNN(1, n, nonlinearity="relu"),
    "SpectralRNN, m = 16": lambda n: spectral(n, None),
    "SpectralRNN, m = 16, with W": lambda n: spectral(n, False),
    "SpectralRNN, m = n": lambda n: spectral(n, None, n),
    "Algorithms 1–3 in each step, m = 16": lambda n: ReflectorRNN(1, n, 16, one_by_one.turned),
    "nn.GRU": lambda n: nn.GRU(1, n),
    "nn.LSTM": lambda n: nn.LSTM(1, n),
}


def measure(quick: bool) -> Table:
    jobs = JOBS[:2] if quick else JOBS
    table = Table(
        "Recurrent layers",
        f"A training step over sequences of T steps, {BATCH} at once, loss on the last state, over that of `nn.RNN` "
        "with relu. Algorithms 1–3 of the paper are written in torch for this comparison. `nn.LSTM` and `nn.GRU` spend "
        "half of their time on memory that they give back and ask for again; the second table is the same with an "
        "allocator that keeps it. Numbers too small for full precision are taken for zero throughout, but for the rows "
        "that say otherwise: vanishing gradients pass through them, which costs ten times as much on some processors.",
        ["", *(f"n = {n}, T = {steps}" for n, steps in jobs)],
    )
    names = [*LAYERS, "nn.RNN, small numbers kept", "nn.LSTM, small numbers kept"]
    cells = {name: [""] * len(jobs) for name in names}
    for i, (n, steps) in enumerate(jobs):
        candidates = {
            name: training_step(make(n), n, steps)
            for name, make in LAYERS.items()
            if "in each step" not in name or n * steps <= 128 * 100
        }
        for name in ("nn.RNN", "nn.LSTM"):
            candidates[f"{name}, small numbers kept"] = _with_small_numbers(candidates[name])
        race = Race(candidates, seconds=1 if quick else 10)
        for name in candidates:
            ratio = race.ratio(name, "nn.RNN")
            cells[name][i] = f"{1e3 * race.seconds(name):.1f} ms" if name == "nn.RNN" else f"{ratio:.2f}"
            table.figures[f"{name} n={n} T={steps}"] = ratio
            table.figures[f"{name} over LSTM n={n} T={steps}"] = race.ratio(name, "nn.LSTM")
    table.rows = [[name, *row] for name, row in cells.items()]
    return table


def training_step(layer: nn.Module, n: int, steps: int) -> Callable[[], object]:
    x, cotangent = torch.randn(steps, BATCH, 1), torch.randn(1, BATCH, n) / n
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        _, last = layer(x)
        (last[0] if isinstance(last, tuple) else last).backward(cotangent)
        optimizer.step()

    return step


def _with_small_numbers(step: Callable[[], object]) -> Callable[[], object]:
    def kept() -> None:
        torch.set_flush_denormal(False)
        step()
        torch.set_flush_denormal(True)

    return kept
