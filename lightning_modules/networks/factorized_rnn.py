"""The factorized RNN that the paper is compared with in Table 2."""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from spectral_param import Band
from spectral_param.functional import rnn_scan


class FactorizedRNN(nn.Module):
    """A recurrent layer with ``W = U diag(σ) Vᵀ``, U and V by torch's Cayley map (Vorontsov et al. 2017).

    σ stays in a band around 1 by Eq. 4 of the paper. U and V take n² numbers each, where reflectors take fewer.

    Initial values: U and V random, σ = 1; input weight uniform in ±1/√n; bias and initial state zero.

    Args:
        input_size: features of a step.
        hidden_size: size n of the state.
        radius: radius of the band that holds σ.
        nonlinearity: "tanh", "relu" or "leaky_relu".
        negative_slope: slope of leaky_relu below zero.
        learn_initial_state: whether the state before the first step is trained.

    Example:
        >>> rnn = FactorizedRNN(2, 16)
        >>> output, state = rnn(torch.zeros(8, 10, 2))
        >>> output.shape, state.shape
        (torch.Size([8, 10, 16]), torch.Size([1, 8, 16]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        radius: float = 0.01,
        nonlinearity: str = "relu",
        negative_slope: float = 0.01,
        learn_initial_state: bool = False,
    ) -> None:
        super().__init__()
        self.nonlinearity = nonlinearity
        self.negative_slope = negative_slope
        self.band = Band(radius)
        for name in ("u", "v"):
            setattr(self, name, nn.Parameter(nn.init.orthogonal_(torch.empty(hidden_size, hidden_size))))
            parametrizations.orthogonal(self, name, orthogonal_map="cayley")
        self.raw_sigma = nn.Parameter(torch.zeros(hidden_size))
        bound = 1 / math.sqrt(hidden_size)
        self.input_weight = nn.Parameter(torch.empty(hidden_size, input_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        self.initial_state = nn.Parameter(torch.zeros(1, hidden_size)) if learn_initial_state else None

    def recurrent_weight(self) -> Tensor:
        """Returns W, ``(n, n)``."""
        return (self.u * self.band(self.raw_sigma)) @ self.v.mT

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Runs over sequences of shape ``(batch, length, input_size)``, as :class:`torch.nn.RNN` does."""
        if hx is None:
            start = input.new_zeros(1, len(self.bias)) if self.initial_state is None else self.initial_state
            hx = start[:, None].expand(-1, len(input), -1)
        weight = self.recurrent_weight()
        states, last = rnn_scan(
            input.transpose(0, 1),
            hx[0],
            self.input_weight,
            weight,
            self.bias,
            self.nonlinearity,
            self.negative_slope,
        )
        return states.transpose(0, 1), last[None]
