"""A deep network of small layers: 30 of 128."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import register_svd_parametrization, together

DEPTH, WIDTH, BATCH = 30, 128, 128


def network(m: int | None = None) -> nn.Module:
    layers: list[nn.Module] = [nn.Linear(784, WIDTH), nn.ReLU()]
    for _ in range(DEPTH):
        layer = nn.Linear(WIDTH, WIDTH)
        if m is not None:
            register_svd_parametrization(layer, reflectors=m, init="orthogonal")
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def measure(quick: bool) -> Table:
    table = Table(
        "A deep network",
        f"A training step of {DEPTH} layers of {WIDTH} (784 inputs, 10 outputs, batch {BATCH}), over the plain "
        "network; layer by layer, and with the weights built `together`.",
        ["", "ratio", "ms"],
    )
    steps = {"plain": training_step(network(), nullcontext)}
    for name, m in (("m = 16", 16), ("m = n", WIDTH)):
        steps[f"{name}, together"] = training_step(network(m), together)
        steps[f"{name}, layer by layer"] = training_step(network(m), nullcontext)
    race = Race(steps, seconds=3 if quick else 20)
    for name in steps:
        ratio = race.ratio(name, "plain")
        table.rows.append([name, f"{ratio:.2f}", f"{1e3 * race.seconds(name):.1f}"])
        table.figures[name] = ratio
    return table


def training_step(
    model: nn.Module, around: Callable[[nn.Module], AbstractContextManager[object]]
) -> Callable[[], object]:
    x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with around(model):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step
