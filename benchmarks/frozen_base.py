"""A frozen base that is turned, beside LoRA, HRA and a plain layer that is trained."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.adapters import HRA, LoRA
from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import register_all, register_svd_parametrization

ROWS = 2048
PEAK = """
from pathlib import Path
import torch
from benchmarks.frozen_base import layer, step

def resident(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

torch.set_num_threads(1)
step(layer("{name}", 64), 64)()
trained = layer("{name}", {n})
before = resident("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
run = step(trained, {n})
run(), run()
print(resident("VmHWM") - before)
"""


def measure(quick: bool) -> Table:
    table = Table(
        "A frozen base",
        f"A training step of an n×n layer on {ROWS} rows, float32, gradients by the input too: LoRA of rank 16, HRA "
        "with 16 reflectors, ours with 8 on each side and 8 σ, a plain layer that is trained, and what ours adds to "
        "memory at its peak over LoRA. ResNet-18: 16 images of 64×64, ours over the plain step. Registering: seconds.",
        ["n", "plain", "LoRA", "HRA", "ours", "over LoRA", "over HRA", "peak memory over LoRA", "registering, s"],
    )
    for n in (256,) if quick else (1024, 2048, 4096):
        names = ("plain", "LoRA", "HRA", "ours")
        torch.set_num_threads(1)
        start = time.perf_counter()
        layers = {name: layer(name, n) for name in names}
        registering = time.perf_counter() - start
        race = Race({name: step(layers[name], n) for name in names}, seconds=2 if quick else 20)
        memory = _peak("ours", n) / _peak("LoRA", n)
        over = {name: race.ratio("ours", name) for name in ("LoRA", "HRA")}
        times = [f"{1e3 * race.seconds(name):.0f} ms" for name in names]
        ratios = [f"{over['LoRA']:.2f}", f"{over['HRA']:.2f}", f"{memory:.2f}", f"{registering:.1f}"]
        table.rows.append([str(n), *times, *ratios])
        table.figures |= {f"over LoRA n={n}": over["LoRA"], f"over HRA n={n}": over["HRA"], f"memory n={n}": memory}
    if not quick:
        _add_resnet(table)
    return table


def layer(name: str, n: int) -> nn.Module:
    """One of the layers, n×n."""
    weight = torch.randn(n, n) / math.sqrt(n)
    if name in ("LoRA", "HRA"):
        return {"LoRA": LoRA, "HRA": HRA}[name](weight, 16)
    plain = nn.Linear(n, n, bias=False)
    if name == "plain":
        return plain
    return register_svd_parametrization(plain, base="frozen", reflectors=8, rank=8)


def step(model: nn.Module, n: int) -> Callable[[], object]:
    """A training step of an n×n layer, without an optimizer."""
    return _training(model, torch.randn(ROWS, n, requires_grad=True))


def _training(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        model.zero_grad()
        x.grad = None
        model(x).square().mean().backward()

    return run


def _add_resnet(table: Table) -> None:
    from torchvision.models import resnet18

    torch.set_num_threads(1)
    plain, x = resnet18(), torch.randn(16, 3, 64, 64)
    models, seconds = {"plain": plain}, {}
    for name, rank in (("r = 0", 0), ("r = 8", 8), ("all σ", 10**6)):
        models[name] = copy.deepcopy(plain)
        start = time.perf_counter()
        register_all(models[name], base="frozen", reflectors=8, rank=rank)
        seconds[name] = time.perf_counter() - start
        table.figures[f"registering ResNet-18, {name}"] = seconds[name]

    race = Race({name: _training(model, x) for name, model in models.items()}, seconds=15)
    for name in seconds:
        ratio = race.ratio(name, "plain")
        table.figures[f"ResNet-18, {name}"] = ratio
        cells = [f"{1e3 * race.seconds(key):.0f} ms" for key in ("plain", name)]
        row = [f"ResNet-18, {name}", cells[0], "", "", f"{cells[1]}, {ratio:.2f} of plain"]
        table.rows.append([*row, "", "", "", f"{seconds[name]:.1f}"])


def _peak(name: str, n: int) -> float:
    code = PEAK.replace("{name}", name).replace("{n}", str(n))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return float(found.stdout)
