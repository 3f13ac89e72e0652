"""Small weights built natively: one evaluation, and a deep network of them."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext

import torch
from torch import nn

from benchmarks import deep
from benchmarks.race import Race
from benchmarks.table import Table
from benchmarks.weight import evaluation
from spectral_param import native, register_svd_parametrization, together


def measure(quick: bool) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        native.build(folder)
    table = Table(
        "Small weights, native",
        "After `spectral_param.native.build()`: one evaluation of an n×n weight, forward and backward, in ms; and a "
        f"training step of {deep.DEPTH} layers of {deep.WIDTH} as above, over the plain network.",
        ["", "m = 8", "m = 16", "m = 32"],
    )
    for n in (32, 128, 256):
        jobs = {f"ms n={n} m={m}": evaluation(_layer(n, m), torch.randn(n, n)) for m in (8, 16, 32) if 2 * m <= n}
        race = Race(jobs, seconds=1 if quick else 4)
        table.figures |= {name: 1e3 * race.seconds(name) for name in jobs}
        cells = [f"{table.figures[name]:.3f}" for name in jobs]
        table.rows.append([f"one evaluation, n = {n}, ms", *cells, *[""] * (3 - len(cells))])
    for name, around in (("together", together), ("layer by layer", nullcontext)):
        steps = {"plain": deep.training_step(deep.network(), nullcontext)}
        steps |= {f"m = {m}, {name}": deep.training_step(deep.network(m), around) for m in (8, 16, 32)}
        race = Race(steps, seconds=2 if quick else 12)
        ratios = {step: race.ratio(step, "plain") for step in steps if step != "plain"}
        table.figures |= ratios
        table.rows.append([f"{deep.DEPTH} layers, {name}", *(f"{ratio:.2f}" for ratio in ratios.values())])
    return table


def _layer(n: int, m: int) -> nn.Module:
    return register_svd_parametrization(nn.Linear(n, n, bias=False), reflectors=m, init="orthogonal")
