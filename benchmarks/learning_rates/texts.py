"""Networks for letters, each as its kind is usually built, at a small size."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from benchmarks.learning_rates.data import LETTERS, WINDOW


class LSTMModel(nn.Module):
    """An embedding, an LSTM and a dense layer."""

    def __init__(self, embedding: int = 32, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, embedding)
        self.lstm = nn.LSTM(embedding, width, batch_first=True)
        self.head = nn.Linear(width, LETTERS)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


class CausalAttention(nn.Module):
    """Attention to what came before: by one layer as GPT-2's, or three as Llama's, which are turned by their place."""

    def __init__(self, width: int, heads: int, *, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        outputs, bias = (width,) * 3 if rotary else (3 * width,), not rotary
        self.inputs = nn.ModuleList(nn.Linear(width, size, bias=bias) for size in outputs)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.cat([layer(x) for layer in self.inputs], dim=-1).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.rotary:
            q, k = turned(q), turned(k)
        return self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def turned(x: Tensor) -> Tensor:
    """Pairs of features, half the width apart, turned by angles that grow with the place: (…, places, features)."""
    size = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 10_000 ** (torch.arange(size) / size)
    (first, second), cos, sin = x.chunk(2, dim=-1), angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class SwiGLU(nn.Module):
    """w₂ (silu(w₁ x) · w₃ x)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class Experts(nn.Module):
    """Experts whose weights stand in two tensors, (experts, …); each letter goes to the best two by a router."""

    def __init__(self, width: int, inner: int, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up_proj = nn.Parameter(torch.randn(experts, inner, width) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(experts, width, inner) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x).softmax(-1).topk(2)
        shares = torch.zeros(*x.shape[:-1], len(self.up_proj)).scatter(-1, chosen, scores / scores.sum(-1, True))
        inner = silu(torch.einsum("btd,ehd->bteh", x, self.up_proj))
        return torch.einsum("bteh,edh,bte->btd", inner, self.down_proj, shares)


class Block(nn.Module):
    """Attention, then a layer for each letter by itself, each after a norm and beside a shortcut."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], attention: nn.Module, inner: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = norm(width), attention
        self.norm2, self.inner = norm(width), inner

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.inner(self.norm2(x))


class Transformer(nn.Module):
    """Embeddings, with learned positions if ``positions``, blocks, a norm and a dense layer; weights start at 0.02."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], blocks: list[Block], *, positions: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS, width)
        self.positions = nn.Embedding(WINDOW, width) if positions else None
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = norm(width), nn.Linear(width, LETTERS, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def gpt(width: int = 64, depth: int = 1, heads: int = 4) -> nn.Module:
    """As GPT-2: LayerNorm, GELU, biases, learned positions."""
    return Transformer(
        width,
        nn.LayerNorm,
        [
            Block(
                width,
                nn.LayerNorm,
                CausalAttention(width, heads, rotary=False),
                nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)),
            )
            for _ in range(depth)
        ],
        positions=True,
    )


def llama(width: int = 64, depth: int = 1, heads: int = 4) -> nn.Module:
    """As Llama: RMSNorm, SwiGLU, rotary positions, no bias."""
    return Transformer(
        width,
        nn.RMSNorm,
        [
            Block(
                width,
                nn.RMSNorm,
                CausalAttention(width, heads, rotary=True),
                SwiGLU(width, 128),
            )
            for _ in range(depth)
        ],
        positions=False,
    )


def mixture(width: int = 32, depth: int = 1, heads: int = 4) -> nn.Module:
    """As Mixtral: Llama's attention, and four experts in place of the inner layer."""
    return Transformer(
        width,
        nn.RMSNorm,
        [
            Block(width, nn.RMSNorm, CausalAttention(width, heads, rotary=True), Experts(width, 64))
            for _ in range(depth)
        ],
        positions=False,
    )
