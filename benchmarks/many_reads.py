"""Loops that read a weight many times: cells over a sequence, a decoder that writes one token after another."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.race import Race
from benchmarks.table import Table
from spectral_param import register_all, together

Around = Callable[[nn.Module], AbstractContextManager[object]]
STEPS, BATCH, WIDTH, TOKENS = 100, 16, 128, 32


class Cells(nn.Module):
    """An ``nn.LSTMCell`` over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(BATCH, WIDTH), torch.zeros(BATCH, WIDTH)
        for step in x:
            state = self.cell(step, state)
        return state[0]


class Block(nn.Module):
    """Causal attention to what is in the cache, and a gated network behind it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        y = self.before(x)
        q, k, v = (of(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for of in (self.q, self.k, self.v))
        cache[:] = [torch.cat([old, new], -2) for old, new in zip(cache, (k, v), strict=True)] if cache else [k, v]
        y = nn.functional.scaled_dot_product_attention(q, cache[0], cache[1], is_causal=q.shape[-2] > 1)
        x = x + self.o(y.transpose(1, 2).flatten(-2))
        y = self.between(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """A small language model, and what it writes."""

    def __init__(self, width: int = 256, depth: int = 4, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))

    def generate(self, tokens: Tensor, count: int) -> Tensor:
        caches: list[list[Tensor]] = [[] for _ in self.blocks]
        new = tokens
        for _ in range(count):
            x = self.embedding(new)
            for block, cache in zip(self.blocks, caches, strict=True):
                x = block(x, cache)
            new = self.head(x[:, -1:]).argmax(-1)
            tokens = torch.cat([tokens, new], 1)
        return tokens


def measure(quick: bool) -> Table:
    table = Table(
        "Loops that read a weight many times",
        f"An `nn.LSTMCell` of {WIDTH} over {STEPS} steps, batch {BATCH}; a decoder of 4 layers of 256 writing {TOKENS} "
        "tokens after 8, batch 1; a `TransformerEncoderLayer` of 256, batch 4, 16 tokens. All reflectors, over the "
        "same loop with plain weights.",
        ["", "ratio", "ms"],
    )
    seconds = 2 if quick else 15
    _race(table, "LSTMCell, evaluation", *_evaluated(Cells(), torch.randn(STEPS, BATCH, WIDTH)), seconds)
    _race(table, "generate", *_evaluated(Decoder(), torch.randint(1000, (1, 8)), "generate", TOKENS), seconds)
    encoder = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    _race(table, "encoder layer, evaluation", *_evaluated(encoder, torch.randn(4, 16, 256)), seconds)
    plain = Cells()
    cells = copy.deepcopy(plain)
    register_all(cells)
    ways: dict[str, Around] = {
        "as it is": lambda model: nullcontext(),
        "`parametrize.cached()`": lambda model: parametrize.cached(),
        "`together`": together,
    }
    steps = {f"LSTMCell, training, {name}": _training(cells, around) for name, around in ways.items()}
    _race(table, "", _training(plain, lambda model: nullcontext()), steps, seconds)
    return table


def _race(
    table: Table,
    name: str,
    plain: Callable[[], object],
    others: Callable[[], object] | dict[str, Callable[[], object]],
    seconds: float,
) -> None:
    candidates = others if isinstance(others, dict) else {name: others}
    race = Race({"plain": plain, **candidates}, seconds)
    for candidate in candidates:
        table.figures[candidate] = race.ratio(candidate, "plain")
        table.rows.append([candidate, f"{race.ratio(candidate, 'plain'):.2f}", f"{1e3 * race.seconds(candidate):.1f}"])


def _evaluated(
    plain: nn.Module, x: Tensor, method: str = "forward", *arguments: object
) -> tuple[Callable[[], object], Callable[[], object]]:
    """The plain model without gradients, and the same registered."""
    registered = copy.deepcopy(plain)
    register_all(registered)

    def run(model: nn.Module) -> Callable[[], object]:
        return torch.no_grad()(lambda: getattr(model.eval(), method)(x, *arguments))

    return run(plain), run(registered)


def _training(model: nn.Module, around: Around) -> Callable[[], object]:
    x = torch.randn(STEPS, BATCH, WIDTH)

    def step() -> None:
        model.zero_grad()
        with around(model):
            loss = model(x).square().sum()
        loss.backward()

    return step
