"""The block that ResNets are made of."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Sequential):
    """``x + f(x)`` with f the modules in turn, as in ``nn.Sequential``; f has to keep the shape of x.

    x is the input as it was given, even if f begins with a module that works in place.

    Raises:
        ValueError: when called, if f does not keep the shape: repeated over x, it would be steeper than it is.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.nn import Residual
        >>> Residual(nn.ReLU(inplace=True), nn.Identity())(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  4.])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Adds what the modules make of the input to it."""
        works_in_place = any(getattr(module, "inplace", False) for module in self.modules())
        branch: Tensor = super().forward(input.clone() if works_in_place else input)
        if branch.shape != input.shape:
            raise ValueError(f"Residual: expected f to keep the shape {tuple(input.shape)}, got {tuple(branch.shape)}.")
        return input + branch
