"""The block that ResNets are made of."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Sequential):
    """``x + f(x)`` with f the modules in turn, as in ``nn.Sequential``; f has to keep the shape of x.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.nn import Residual
        >>> Residual(nn.ReLU(), nn.Identity())(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  4.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Adds what the modules make of the input to it."""
        branch: Tensor = super().forward(input)
        return input + branch
