"""Building W, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from benchmarks import fasth, one_by_one
from benchmarks.peers import HAS_TORCH_HOUSEHOLDER, MISSING, ReflectorWeight, torch_householder
from benchmarks.race import Race, gemm_rate
from benchmarks.table import Table
from spectral_param import register_svd_parametrization

COLUMNS = ("ours", "Algorithms 1–3", "FastH", "torch orthogonal (householder)", "torch-householder")


def measure(quick: bool) -> Table:
    table = Table(
        "Building W",
        "One evaluation of an n×n weight, forward and backward, float32: the weight read from the module, in ms. "
        "Algorithms 1–3 of the paper and FastH are written in torch for this comparison, with their own gradients. "
        "Torch's `orthogonal` and torch-householder build one orthogonal matrix, the others two and σ. The fraction is "
        "that of the rate of `torch.mm` in the same run that counts the operations of the blocked form, "
        f"(10/3 + 25/3) n³.{MISSING}",
        ["n", "m", *COLUMNS, "of the rate of torch.mm"],
    )
    sizes = (32, 128, 512) if quick else (32, 128, 512, 1024, 2048)
    for n in sizes:
        for m in sorted({8, 16, 32, n // 4, n}):
            if m <= n:
                _row(table, n, m, quick)
    return table


def _row(table: Table, n: int, m: int, quick: bool) -> None:
    cotangent = torch.randn(n, n)
    candidates = {name: evaluation(make(), cotangent) for name, make in _builders(n, m).items()}
    race = Race(candidates, seconds=0.4 if quick else 1.5)
    cells = [f"{1e3 * race.seconds(name):.2f}" if name in candidates else "" for name in COLUMNS]
    fraction = ""
    if m == n and n >= 128:
        share = (35 / 3) * n**3 / race.seconds("ours") / gemm_rate(min(n, 1024))
        table.figures[f"fraction n={n}"] = share
        fraction = f"{share:.2f}"
    table.rows.append([str(n), str(m), *cells, fraction])
    table.figures[f"ms n={n} m={m}"] = 1e3 * race.seconds("ours")
    if m in (16, n):
        table.point(f"m = {'n' if m == n else m}", n, race.seconds("ours"))


def _builders(n: int, m: int) -> dict[str, Callable[[], nn.Module]]:
    """Modules that have or give the weight; the slow ones at small sizes only."""

    def linear() -> nn.Module:
        return nn.Linear(n, n, bias=False)

    builders: dict[str, Callable[[], nn.Module]] = {
        "ours": lambda: register_svd_parametrization(linear(), reflectors=m, init="orthogonal")
    }
    if n * m <= 128 * 128:
        builders["Algorithms 1–3"] = lambda: ReflectorWeight(n, m, one_by_one.turned)
        builders["FastH"] = lambda: ReflectorWeight(n, m, fasth.turned)
    if m == n and n <= 512:
        builders["torch orthogonal (householder)"] = lambda: parametrizations.orthogonal(
            linear(), orthogonal_map="householder"
        )
        if HAS_TORCH_HOUSEHOLDER:
            builders["torch-householder"] = lambda: torch_householder(linear())
    return builders


def evaluation(module: nn.Module, cotangent: Tensor) -> Callable[[], object]:
    eye, parameters = torch.eye(len(cotangent)), list(module.parameters())

    def evaluate() -> None:
        for parameter in parameters:
            parameter.grad = None
        weight = module(eye) if isinstance(module, ReflectorWeight) else module.weight
        weight.backward(cotangent)

    return evaluate
