"""Other ways to the same weights, as modules: Algorithms 1 to 3 of the paper, FastH, and torch-householder."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Turned = Callable[
    ..., Tensor
]  # reflectors (n, m), x (n, B), transpose: as in benchmarks.one_by_one and benchmarks.fasth
HAS_TORCH_HOUSEHOLDER = find_spec("torch_householder") is not None
MISSING = "" if HAS_TORCH_HOUSEHOLDER else " `torch-householder` is not installed here, and its row is left out."


class ReflectorWeight(nn.Module):
    """U diag(σ) Vᵀ (n, n) of m reflectors a side, applied by a function ``turned``."""

    def __init__(self, n: int, m: int, turned: Turned) -> None:
        super().__init__()
        self.u, self.v = (nn.Parameter(torch.randn(n, m).tril()) for _ in range(2))
        self.sigma = nn.Parameter(torch.ones(n))
        self.turned = turned

    def forward(self, x: Tensor) -> Tensor:
        """W x, for the columns of x (n, B)."""
        return self.turned(self.u, self.sigma[:, None] * self.turned(self.v, x, transpose=True))


class ReflectorLinear(nn.Module):
    """A linear layer that applies such a weight to its inputs."""

    def __init__(self, n: int, m: int, turned: Turned) -> None:
        super().__init__()
        self.weight = ReflectorWeight(n, m, turned)
        self.bias = nn.Parameter(torch.zeros(n))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight(x.mT).mT + self.bias


class ReflectorRNN(nn.Module):
    """A recurrent layer, relu, that applies such a weight in each step."""

    def __init__(self, size: int, n: int, m: int, turned: Turned) -> None:
        super().__init__()
        self.weight = ReflectorWeight(n, m, turned)
        self.input = nn.Linear(size, n)

    def forward(self, x: Tensor) -> tuple[None, Tensor]:
        """The last state (1, B, n) for x (T, B, size)."""
        h = x.new_zeros(x.shape[1], self.input.out_features)
        for projected in self.input(x).unbind(0):
            h = torch.relu(projected + self.weight(h.mT).mT)
        return None, h[None]


class _Orgqr(nn.Module):
    def forward(self, reflectors: Tensor) -> Tensor:
        from torch_householder import torch_householder_orgqr

        return torch_householder_orgqr(reflectors.tril(-1) + torch.eye(*reflectors.shape))


def torch_householder(layer: nn.Module) -> nn.Module:
    """One orthogonal matrix in place of a square weight, by torch-householder."""
    return parametrize.register_parametrization(layer, "weight", _Orgqr())
