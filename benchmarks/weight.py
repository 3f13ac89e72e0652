"""Building W, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from benchmarks.race import Race, gemm_rate
from benchmarks.table import Table
from spectral_param import register_svd_parametrization


def measure(quick: bool) -> Table:
    table = Table(
        "Building W",
        "One evaluation of an n×n weight, forward and backward, float32: the weight read from the module, in ms. "
        "Torch's `orthogonal` builds one orthogonal matrix, ours two and σ. The fraction is that of the rate of "
        "`torch.mm` in the same run that counts the operations of the blocked form, (10/3 + 25/3) n³.",
        ["n", "m", "ours", "reflectors one by one", "torch orthogonal (householder)", "of the rate of torch.mm"],
    )
    sizes = (32, 128, 512) if quick else (32, 128, 512, 1024, 2048)
    for n in sizes:
        for m in sorted({8, 16, 32, n // 4, n}):
            if m <= n:
                _row(table, n, m, quick)
    return table


def _row(table: Table, n: int, m: int, quick: bool) -> None:
    cotangent = torch.randn(n, n)
    ours = register_svd_parametrization(nn.Linear(n, n, bias=False), reflectors=m, init="orthogonal")
    candidates = {"ours": _evaluation(ours, cotangent)}
    if n * m <= 128 * 128:
        candidates["one by one"] = _one_by_one(n, m, cotangent)
    if m == n and n <= 512:
        other = parametrizations.orthogonal(nn.Linear(n, n, bias=False), orthogonal_map="householder")
        candidates["torch"] = _evaluation(other, cotangent)
    race = Race(candidates, seconds=0.4 if quick else 1.5)
    cells = [
        f"{1e3 * race.seconds(name):.2f}" if name in candidates else "" for name in ("ours", "one by one", "torch")
    ]
    fraction = ""
    if m == n and n >= 128:
        share = (35 / 3) * n**3 / race.seconds("ours") / gemm_rate(min(n, 1024))
        table.figures[f"fraction n={n}"] = share
        fraction = f"{share:.2f}"
    table.rows.append([str(n), str(m), *cells, fraction])
    table.figures[f"ms n={n} m={m}"] = 1e3 * race.seconds("ours")
    if m in (16, n):
        table.point(f"m = {'n' if m == n else m}", n, race.seconds("ours"))


def _evaluation(layer: nn.Module, cotangent: Tensor) -> Callable[[], object]:
    def evaluate() -> None:
        layer.zero_grad()
        layer.weight.backward(cotangent)

    return evaluate


def _one_by_one(n: int, m: int, cotangent: Tensor) -> Callable[[], object]:
    """Algorithms 1 to 3 of the paper, by autograd."""
    u, v = (torch.randn(n, m).tril().requires_grad_() for _ in range(2))
    sigma = torch.ones(n, requires_grad=True)

    def product(reflectors: Tensor, x: Tensor) -> Tensor:
        for r in reversed(reflectors.unbind(1)):
            x = x - torch.outer(2 * r / (r @ r), r @ x)
        return x

    def evaluate() -> None:
        w = product(u, (product(v, torch.eye(n)) * sigma).mT)
        torch.autograd.grad(w, (u, sigma, v), cotangent)

    return evaluate
