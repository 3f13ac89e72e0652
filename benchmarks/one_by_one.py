"""The paper's Algorithms 1 to 3: reflectors are applied one by one, and the gradients are its formulas.

Two indices are put right: the backward loops of Algorithm 1 give Hgrad what a reflector was applied to, where the paper
prints its result, and the states of U in the loop over V. The gradient is the last line of Eq. 6; the line before it is
misprinted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def hprod(h: Tensor, u: Tensor) -> Tensor:
    """Algorithm 2: H(u) h, for the columns of h (n, B)."""
    return h - torch.outer(2 / (u @ u) * u, u @ h)


def hgrad(h: Tensor, u: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3: the gradients by h and u of H(u) h."""
    alpha = 2 / (u @ u)
    beta, gamma = alpha * (u @ h), alpha * (u @ grad)
    return grad - torch.outer(u, gamma), (beta @ gamma) * u - grad @ beta - h @ gamma


class _Applied(torch.autograd.Function):
    """Algorithm 1: all products forward, kept, and all gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *reflectors: Tensor) -> Tensor:
        states = [x]
        for u in reflectors:
            states.append(hprod(states[-1], u))
        ctx.save_for_backward(*states[:-1], *reflectors)
        return states[-1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        saved = ctx.saved_tensors
        count = len(saved) // 2
        found = []
        for h, u in zip(reversed(saved[:count]), reversed(saved[count:]), strict=True):
            grad, of_u = hgrad(h, u, grad)
            found.append(of_u)
        return (grad, *reversed(found))


def turned(reflectors: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """``U x`` or ``Uᵀ x`` for U = H(column 0) H(column 1) …, reflectors (n, m) with zeros above, x (n, B)."""
    columns = reflectors.unbind(1)
    return _Applied.apply(x, *(columns if transpose else reversed(columns)))
