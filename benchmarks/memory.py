"""Peak memory of a training step, each layer in a process of its own (Linux)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.table import Table

CODE = """
from pathlib import Path
import torch
from torch import nn
from spectral_param import register_svd_parametrization

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

def steps(layer, n):
    x = torch.randn(128, n, requires_grad=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)
    for _ in range(2):
        optimizer.zero_grad()
        layer(x).sum().backward()
        optimizer.step()

def layer(n, m, way):
    plain = nn.Linear(n, n)
    return plain if not m else register_svd_parametrization(plain, reflectors=m, init="orthogonal", matrix_free=way)

steps(layer(64, {m} and 8, {way}), 64)
before = resident("VmRSS")
trained = layer({n}, {m}, {way})
Path("/proc/self/clear_refs").write_text("5")
steps(trained, {n})
print(resident("VmHWM") - before)
"""


def measure(quick: bool) -> Table:
    n = 512 if quick else 2048
    table = Table(
        "Peak memory",
        f"What a training step of an n×n linear layer adds to the memory of the process at its peak, n = {n}, batch "
        "128: parameters, gradients, and all that is kept for the backward.",
        ["", "MB", "over nn.Linear"],
    )
    megabytes = {
        "nn.Linear": _peak(n, 0, None),
        "m = 16": _peak(n, 16, None),
        "m = 16, with W": _peak(n, 16, False),
    }
    if not quick:
        megabytes["m = n"] = _peak(n, n, None)
    for name, peak in megabytes.items():
        ratio = peak / megabytes["nn.Linear"]
        table.rows.append([name, f"{peak:.0f}", f"{ratio:.2f}"])
        table.figures[name] = ratio
    return table


def _peak(n: int, m: int, way: bool | None) -> float:
    code = CODE.replace("{n}", str(n)).replace("{m}", str(m)).replace("{way}", str(way))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(found.stdout)
