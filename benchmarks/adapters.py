"""Layers on a frozen weight, as their papers have them: what ours is held against."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LoRA(nn.Module):
    """W₀ x + B (A x), rank r."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        p, q = weight.shape
        self.register_buffer("weight", weight)
        self.a = nn.Parameter(torch.randn(rank, q) / math.sqrt(q))
        self.b = nn.Parameter(torch.zeros(p, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(…, q) → (…, p)."""
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b)


class HRA(nn.Module):
    """W₀ turned on its right by r reflectors, one after the other, that begin as equal pairs."""

    def __init__(self, weight: Tensor, reflectors: int) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.u = nn.Parameter(torch.randn(weight.shape[1], reflectors // 2).repeat_interleave(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(…, q) → (…, p)."""
        w = self.weight
        for u in F.normalize(self.u, dim=0).unbind(1):
            w = w - 2 * torch.outer(w @ u, u)
        return F.linear(x, w)
