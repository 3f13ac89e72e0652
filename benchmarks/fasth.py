"""FastH (Mathiasen et al., 2020), written in plain torch: blocks of about √m reflectors, in parallel where they can be.

Each block is I - W Yᵀ, found one reflector after the other but for all blocks at once. A product takes a step a block;
so does the gradient; within the blocks the gradients of the reflectors are again found for all blocks at once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad


class _Applied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor) -> Tensor:
        """Block 0 block 1 … applied to x (n, B); y (blocks, n, k) of unit columns, or zeros."""
        w = _second_factors(y)
        states = [x]
        for block in reversed(range(len(y))):
            states.append(states[-1] - w[block] @ (y[block].mT @ states[-1]))
        ctx.save_for_backward(y, w, torch.stack(states[:0:-1]))
        return states[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        y, w, outputs = ctx.saved_tensors
        grads = [grad]
        for block in range(len(y)):
            grads.append(grads[-1] - y[block] @ (w[block].mT @ grads[-1]))
        h, g, of_y = outputs, torch.stack(grads[:-1]), torch.empty_like(y)  # behind each block
        for j in range(y.shape[2]):
            u = y[:, :, j : j + 1]
            h = h - 2 * u @ (u.mT @ h)
            beta, gamma = 2 * u.mT @ h, 2 * u.mT @ g
            of_y[:, :, j : j + 1] = -(g @ beta.mT) - h @ gamma.mT
            g = g - u @ gamma
        return of_y, grads[-1]


def _second_factors(y: Tensor) -> Tensor:
    """W of H(y₀) … H(y_{k-1}) = I - W Yᵀ, for all blocks."""
    w = torch.empty_like(y)
    for j in range(y.shape[2]):
        u = y[:, :, j : j + 1]
        w[:, :, j : j + 1] = 2 * (u - w[:, :, :j] @ (y[:, :, :j].mT @ u))
    return w


def turned(reflectors: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """``U x`` or ``Uᵀ x`` for U = H(column 0) H(column 1) …, reflectors (n, m) with zeros above, x (n, B)."""
    n, m = reflectors.shape
    size = math.isqrt(m - 1) + 1
    columns = reflectors.flip(1) if transpose else reflectors
    unit = normalize(columns, dim=0)
    blocks = pad(unit, (0, -m % size)).view(n, -1, size).permute(1, 0, 2).contiguous()
    return _Applied.apply(blocks, x)
