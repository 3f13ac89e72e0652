"""A small vision transformer, whose layers have work enough to pass W by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import register_all, together

WIDTH, BLOCKS, HEADS, TOKENS = 192, 6, 3, 64


class Block(nn.Module):
    """Attention and two layers, every weight that of an ``nn.Linear``."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) to the same."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def network(m: int | None = None) -> nn.Module:
    blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    if m is not None:
        register_all(blocks, nn.Linear, reflectors=m, init="orthogonal")
    return blocks


def measure(quick: bool) -> Table:
    table = Table(
        "A vision transformer",
        f"A training step of {BLOCKS} blocks of {WIDTH} on images of {TOKENS} patches, 8 reflectors on every "
        "`nn.Linear`, over the plain network; layer by layer, and within `together`.",
        ["", "4 images", "16 images"],
    )
    names = {"plain": (None, nullcontext), "layer by layer": (8, nullcontext), "together": (8, together)}
    rows: dict[str, list[str]] = {name: [name] for name in names}
    for images in (4, 16):
        race = Race(
            {n: _step(network(m), around, images) for n, (m, around) in names.items()}, seconds=2 if quick else 20
        )
        for name in names:
            ratio = race.ratio(name, "plain")
            table.figures[f"{name}, {images} images"] = ratio
            rows[name].append(f"{1e3 * race.seconds(name):.1f} ms" if name == "plain" else f"{ratio:.2f}")
    table.rows = list(rows.values())
    return table


def _step(
    model: nn.Module, around: Callable[[nn.Module], AbstractContextManager[object]], images: int
) -> Callable[[], object]:
    x = torch.randn(images, TOKENS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        with around(model):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    return step
