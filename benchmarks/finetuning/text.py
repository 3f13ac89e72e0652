"""Bytes of Wikipedia, and of a newspaper: a transformer that knows the first learns the other."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.finetuning.task import Data, Task, fit

WIDTH, HEADS, BLOCKS, CONTEXT = 128, 4, 2, 64
BASE_STEPS, STEPS, BATCH = 2_500, 250, 16
TESTED = 2_000  # windows of validation and test


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        q, k, v = (part(y).unflatten(-1, (HEADS, -1)).transpose(-2, -3) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(-2, -3).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class ByteModel(nn.Module):
    """Says the next byte: (batch, steps), int64 → (batch, steps, 256)."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bytes(x) + self.places.weight[: x.shape[-1]]
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


class Text(Task):
    """A transformer of two blocks, 128 wide, of bytes of WikiText-2; its linear layers learn the Penn Treebank."""

    name = "text"
    weights = tuple(f"blocks.{i}.{part}" for i in range(BLOCKS) for part in ("q", "k", "v", "o", "up", "down"))
    batch_size = BATCH
    score = "bits a byte"
    best = min
    digits = 3

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def network(self) -> nn.Module:
        return ByteModel()

    def base(self) -> nn.Module:
        """Trained by Adam on WikiText-2."""
        model = self.network()
        windows = _drawn(self.folder / "wikitext-2" / "train.txt", BASE_STEPS * BATCH)
        fit(self, model, [{"params": list(model.parameters())}], windows, rate=2e-3, epochs=1)
        return model

    def data(self) -> dict[str, Data]:
        folder = self.folder / "ptb"
        parts = {"train": _drawn(folder / "ptb.train.txt", STEPS * BATCH)}
        for part in ("val", "test"):
            path = folder / f"ptb.{part.replace('val', 'valid')}.txt"
            parts[part] = _drawn(path, TESTED, torch.Generator().manual_seed(0))
        return parts

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    def measure(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
        parts = zip(inputs.split(100), targets.split(100), strict=True)
        return (
            torch.stack([self.loss(model, *part) for part in parts]).mean().item() / torch.log(torch.tensor(2.0)).item()
        )


def _drawn(path: Path, count: int, generator: torch.Generator | None = None) -> Data:
    """Windows of a file, at random places, and the bytes that come next in them."""
    content = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    starts = torch.randint(len(content) - CONTEXT - 1, (count, 1), generator=generator)
    windows = content[starts + torch.arange(CONTEXT + 1)].long()
    return windows[:, :-1], windows[:, 1:]
