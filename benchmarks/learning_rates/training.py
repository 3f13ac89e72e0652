"""One run: a program in one form, with one optimizer, rate and seed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.learning_rates.programs import Program
from spectral_param import parameter_groups, register_all, together

FORMS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "all": {},
    "16": {"reflectors": 16, "init": "orthogonal"},
}
"""How ``register_all`` is called, by form."""


def train(program: Program, form: str, optimizer: str, lr: float, seed: int, root: Path) -> list[float]:
    """Trains a new network; returns the loss of each step, up to the first that is not finite."""
    torch.manual_seed(seed)
    model = program.model()
    settings = FORMS[form]
    if settings is not None:
        register_all(model, **settings)
    torch.manual_seed(seed)
    steps = optimizer_of(model, optimizer, lr)
    draw, generator = program.data(root), torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for _ in range(program.steps):
        steps.zero_grad()
        with together(model):
            loss = program.loss(model, *draw(generator))
        loss.backward()
        steps.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            break
    return losses


def optimizer_of(model: nn.Module, name: str, lr: float) -> torch.optim.Optimizer:
    """An optimizer of the groups of a model, plain or registered."""
    groups = parameter_groups(model, lr=lr, optimizer=name)
    return torch.optim.Adam(groups) if name == "adam" else torch.optim.SGD(groups, lr=lr, momentum=0.9)


def final(losses: list[float]) -> float:
    """The mean loss of the last tenth of the steps; infinite if one was not finite."""
    last = losses[-max(len(losses) // 10, 1) :]
    return sum(last) / len(last) if all(map(math.isfinite, losses)) else math.inf
