"""What it takes to register weights that are there."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.table import Table
from spectral_param import register_all, register_svd_parametrization


def measure(quick: bool) -> Table:
    table = Table(
        "Registering",
        'With `init="weight"`, float32: an n×n `nn.Linear`, over `torch.linalg.svd` of its weight in float32, right '
        "before; and models, by `register_all`. ViT-B/16 is 12 `nn.TransformerEncoderLayer(768, 12, 3072)`.",
        ["", "m", "s", "over torch.linalg.svd"],
    )
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # few reflectors change a weight
    for n in (512, 1024) if quick else (512, 1024, 2048, 4096):
        for m in (n, 16):
            taken, whole = zip(*(_layer(n, m) for _ in range(5 if n < 2048 else 1)), strict=True)
            kind, seconds, ratio = "all" if m == n else f"m = {m}", min(taken), min(taken) / min(whole)
            table.rows.append([f"nn.Linear, n = {n}", kind, f"{seconds:.2f}", f"{ratio:.2f}"])
            table.figures[f"n = {n}, {kind}, over svd"] = ratio
            table.figures[f"n = {n}, {kind}, s"] = seconds
    for name, m, model in _models(quick):
        taken = _seconds(lambda model=model, m=m: register_all(model, reflectors=m))
        table.rows.append([name, "all" if m is None else f"m = {m}", f"{taken:.2f}", ""])
        table.figures[f"{name}, m = {m}, s"] = taken
    return table


def _layer(n: int, m: int) -> tuple[float, float]:
    """Seconds for a layer, and for the SVD of its weight."""
    layer = nn.Linear(n, n)
    whole = _seconds(lambda: torch.linalg.svd(layer.weight.detach()))
    return _seconds(lambda: register_svd_parametrization(layer, reflectors=m)), whole


def _models(quick: bool) -> list[tuple[str, int | None, nn.Module]]:
    from torchvision.models import resnet18

    models: list[tuple[str, int | None, nn.Module]] = [
        ("30 layers of 128", m, nn.Sequential(*(nn.Linear(128, 128) for _ in range(30)))) for m in (None, 16)
    ]
    if not quick:
        blocks = (nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12))
        models += [("ResNet-18", 8, resnet18()), ("ViT-B/16", 16, nn.Sequential(*blocks))]
    return models


def _seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
