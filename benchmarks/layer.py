"""A linear layer in training: forward, backward with the gradient of the input, and a step of SGD."""

from __future__ import annotations

from collections.abc import Callable

import geotorch
import torch
from torch import nn
from torch.nn.utils import parametrizations

from benchmarks import fasth, one_by_one
from benchmarks.peers import HAS_TORCH_HOUSEHOLDER, MISSING, ReflectorLinear, torch_householder
from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import register_svd_parametrization
from spectral_param.nn import SVDLinear

BATCH = 128
SLOW = ("orthogonal", "geotorch", "torch-householder", "Algorithms 1–3, m = n", "FastH, m = n")  # up to n = 512


def svd(n: int, m: int, matrix_free: bool | None) -> nn.Module:
    return register_svd_parametrization(nn.Linear(n, n), reflectors=m, init="orthogonal", matrix_free=matrix_free)


def geo(name: str, **arguments: object) -> Callable[[int], nn.Module]:
    def make(n: int) -> nn.Module:
        layer = nn.Linear(n, n)
        chosen = {key: n if value == "n" else value for key, value in arguments.items()}
        getattr(geotorch, name)(layer, "weight", **chosen)
        return layer

    return make


def orthogonal(kind: str) -> Callable[[int], nn.Module]:
    return lambda n: parametrizations.orthogonal(nn.Linear(n, n), orthogonal_map=kind)


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "nn.Linear": lambda n: nn.Linear(n, n),
    "m = 16": lambda n: svd(n, 16, None),
    "m = 16, without W": lambda n: svd(n, 16, True),
    "m = 16, with W": lambda n: svd(n, 16, False),
    "m = n/4": lambda n: svd(n, n // 4, None),
    "m = n/4, with W": lambda n: svd(n, n // 4, False),
    "m = n": lambda n: svd(n, n, None),
    "m = n, with W": lambda n: svd(n, n, False),
    "SVDLinear, m = 16": lambda n: SVDLinear(n, n, reflectors=16),
    "Algorithms 1–3, m = 16": lambda n: ReflectorLinear(n, 16, one_by_one.turned),
    "Algorithms 1–3, m = n": lambda n: ReflectorLinear(n, n, one_by_one.turned),
    "FastH, m = 16": lambda n: ReflectorLinear(n, 16, fasth.turned),
    "FastH, m = n": lambda n: ReflectorLinear(n, n, fasth.turned),
    "torch spectral_norm": lambda n: parametrizations.spectral_norm(nn.Linear(n, n)),
    "torch orthogonal, cayley": orthogonal("cayley"),
    "torch orthogonal, matrix_exp": orthogonal("matrix_exp"),
    "torch orthogonal, householder": orthogonal("householder"),
    "torch-householder": lambda n: torch_householder(nn.Linear(n, n)),
    "geotorch orthogonal": geo("orthogonal"),
    "geotorch almost_orthogonal": geo("almost_orthogonal", lam=0.1),
    "geotorch low_rank, r = 16": geo("low_rank", rank=16),
    "geotorch fixed_rank, r = n": geo("fixed_rank", rank="n"),
}


def measure(quick: bool) -> Table:
    sizes = (128, 512) if quick else (128, 512, 1024, 2048)
    table = Table(
        "A linear layer",
        f"A training step of an n×n layer on {BATCH} vectors, with the gradient of the input, over that of a plain "
        "`nn.Linear`. Where nothing else is said, the layer chooses itself whether to build W. Algorithms 1–3 of "
        "the paper and FastH are written in torch for this comparison, and applied to the vectors. Torch's and "
        "geotorch's `orthogonal` and torch-householder have one orthogonal matrix, `spectral_norm` none, others two."
        f"{MISSING}",
        ["", *(f"n = {n}" for n in sizes)],
    )
    cells = {name: [""] * len(sizes) for name in LAYERS}
    for i, n in enumerate(sizes):
        candidates = {name: training_step(make(n), n) for name, make in LAYERS.items() if _in_reach(name, n)}
        race = Race(candidates, seconds=2 if quick else 12, rounds=3)
        for name in candidates:
            ratio = race.ratio(name, "nn.Linear")
            cells[name][i] = f"{1e3 * race.seconds(name):.2f} ms" if name == "nn.Linear" else f"{ratio:.2f}"
            table.figures[f"{name} n={n}"] = ratio
            if name in ("nn.Linear", "m = 16", "m = n", "m = n, with W", "geotorch almost_orthogonal"):
                table.point(name, n, race.seconds(name))
        if n == 512:
            for other in ("torch orthogonal, householder", "geotorch almost_orthogonal"):
                table.figures[f"m = n over {other}"] = race.ratio("m = n", other)
                table.figures[f"m = n, with W over {other}"] = race.ratio("m = n, with W", other)
    table.rows = [[name, *row] for name, row in cells.items() if any(row)]
    return table


def _in_reach(name: str, n: int) -> bool:
    if name == "torch-householder" and not HAS_TORCH_HOUSEHOLDER:
        return False
    slow = n > 512 and any(word in name for word in SLOW)
    return not slow and not (n > 1024 and name in ("m = n, with W", "m = n/4, with W"))


def training_step(layer: nn.Module, n: int) -> Callable[[], object]:
    x, cotangent = torch.randn(BATCH, n, requires_grad=True), torch.randn(BATCH, n)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-4)

    def step() -> None:
        x.grad = None
        optimizer.zero_grad()
        layer(x).backward(cotangent)
        optimizer.step()

    return step
