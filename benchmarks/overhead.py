"""Small things: training σ alone, and what the import costs."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import register_svd_parametrization

IMPORT = "import time, torch; t = time.process_time(); import spectral_param; print(time.process_time() - t)"


class Diagonal(nn.Module):
    """A frozen layer, its outputs scaled by trained numbers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n, n).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)


def measure(quick: bool) -> Table:
    table = Table(
        "σ alone, and the import",
        "A training step with only σ trained, n = 512, batch 128, over a frozen `nn.Linear` with a trained diagonal "
        "behind it; and the time of `import spectral_param` after `import torch`.",
        ["", "measured"],
    )
    n = 512
    models: dict[str, nn.Module] = {"diagonal": Diagonal(n)}
    for m in (16, n):
        layer = register_svd_parametrization(nn.Linear(n, n), reflectors=m, init="orthogonal", train="sigma")
        models[f"σ alone, m = {'n' if m == n else m}"] = layer
    race = Race({name: _step(model, n) for name, model in models.items()}, seconds=1 if quick else 5)
    for name in list(models)[1:]:
        table.figures[name] = race.ratio(name, "diagonal")
        table.rows.append([name, f"{race.ratio(name, 'diagonal'):.2f}"])
    runs = [
        subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    table.figures["import"] = statistics.median(float(run.stdout) for run in runs)
    table.rows.append(["import, s", f"{table.figures['import']:.3f}"])
    return table


def _step(model: nn.Module, n: int) -> Callable[[], object]:
    x, cotangent = torch.randn(128, n, requires_grad=True), torch.randn(128, n)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step() -> None:
        x.grad = None
        optimizer.zero_grad()
        model(x).backward(cotangent)
        optimizer.step()

    return step
