"""``python -m benchmarks.capped_gpt FILE``: a small GPT with every matrix capped, beside the same one without.

Bytes of a text, say WikiText-2's ``train.txt``. After every step σ_max of every matrix is computed by ``svdvals`` and
held against the cap; steps of the plain and of the capped run alternate, and what is compared is the processor time of
the whole step: forward, backward, optimizer and cap.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from spectral_param import SpectralCap


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, width // 32) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        for weight in self.matrices():
            nn.init.normal_(weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.bytes(text) + self.places.weight[: text.shape[1]])))

    def matrices(self) -> list[Tensor]:
        return [weight for weight in self.parameters() if weight.dim() == 2]


class Run:
    """A model in training."""

    def __init__(self, kind: str, options: argparse.Namespace, cap: float | None) -> None:
        torch.manual_seed(0)
        self.model = GPT(options.width, options.layers, options.length)
        hidden = [weight for weight in self.model.blocks.parameters() if weight.dim() == 2]
        of_muon = {id(weight) for weight in hidden} if kind == "Muon" else set()
        others = [p for p in self.model.parameters() if id(p) not in of_muon]
        self.optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=1e-3)]
        if of_muon:
            self.optimizers.append(torch.optim.Muon(hidden, lr=0.02))
        self.cap = None if cap is None else SpectralCap(self.model, cap)
        self.of_cap: list[float] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.greatest: list[float] = []

    def step(self, text: Tensor) -> None:
        begin = time.process_time()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        begin_cap = time.process_time()
        if self.cap is not None:
            self.cap.hold_()  # what attach() does after each step of an optimizer, here apart so that it can be timed
        end = time.process_time()
        self.seconds.append(end - begin)
        self.of_cap.append(end - begin_cap)
        self.losses.append(loss.item())
        with torch.no_grad():
            self.greatest.append(max(torch.linalg.svdvals(weight)[0].item() for weight in self.model.matrices()))


def measure(kind: str, options: argparse.Namespace) -> str:
    text = torch.frombuffer(bytearray(options.file.read_bytes()), dtype=torch.uint8)
    plain, capped = Run(kind, options, None), Run(kind, options, options.cap)
    generator = torch.Generator().manual_seed(0)
    for step in range(options.steps):
        places = torch.randint(len(text) - options.length, (options.batch, 1), generator=generator)
        batch = text[places + torch.arange(options.length + 1)].long()
        for run in (plain, capped) if step % 2 else (capped, plain):
            run.step(batch)
    plain_time = sum(plain.seconds[2:])
    ratio, share = sum(capped.seconds[2:]) / plain_time, sum(capped.of_cap[2:]) / plain_time
    middle = statistics.median(capped.seconds[2:]) / statistics.median(plain.seconds[2:])
    at_cap = sum(norm > 0.99 * options.cap for norm in capped.greatest)
    return (
        f"{kind}: σ_max / cap at most {max(capped.greatest) / options.cap:.4f} over {options.steps} steps "
        f"(plain {max(plain.greatest) / options.cap:.2f}), at the cap in {at_cap}; a step takes {ratio:.3f} of the "
        f"plain run's {plain_time / (options.steps - 2):.2f} s (medians {middle:.3f}), the cap itself {share:.3f}; "
        f"loss at the end {statistics.mean(capped.losses[-5:]):.3f}, plain {statistics.mean(plain.losses[-5:]):.3f}"
    )


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capped_gpt", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cap", type=float, default=1.0)
    for name, default in (("width", 256), ("layers", 4), ("length", 256), ("batch", 32), ("steps", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in ("AdamW", "Muon"):
        print(measure(kind, options), flush=True)


if __name__ == "__main__":
    main()
