"""Activations that sort: they lose no length, where ReLU loses what is below zero."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GroupSort(nn.Module):
    """Sorts channels within groups (Anil et al. 2019), so that between orthogonal layers no gradient shrinks.

    1-Lipschitz, with a Jacobian that is a permutation: all its singular values are 1.

    Args:
        size: neighbouring channels in a group, at least 2; it has to divide their number.
        dim: the dimension of the channels.

    Raises:
        ValueError: if ``size`` is less than 2, or, in a forward, does not divide the channels.

    Example:
        >>> import torch
        >>> from spectral_param.nn import GroupSort
        >>> GroupSort(3)(torch.tensor([[3.0, 1.0, 2.0, -1.0, 0.0, -2.0]]))
        tensor([[ 1.,  2.,  3., -2., -1.,  0.]])
    """

    def __init__(self, size: int, dim: int = 1) -> None:
        super().__init__()
        if size < 2:
            raise ValueError(f"size: expected at least 2, got {size}.")
        self.size, self.dim = size, dim

    def forward(self, input: Tensor) -> Tensor:
        """Sorts in ascending order; shape and dtype stay."""
        if input.shape[self.dim] % self.size:
            raise ValueError(
                f"input: expected a number of channels that {self.size} divides, got {input.shape[self.dim]}."
            )
        dim = self.dim % input.dim()
        groups = input.unflatten(dim, (-1, self.size))
        if self.size == 2:
            first, second = groups.unbind(dim + 1)
            groups = torch.stack([torch.minimum(first, second), torch.maximum(first, second)], dim + 1)
        else:
            groups = groups.sort(dim + 1).values
        return groups.flatten(dim, dim + 1)

    def extra_repr(self) -> str:
        """Size and dimension, for printing."""
        return f"{self.size}, dim={self.dim}"


class MaxMin(GroupSort):
    """:class:`GroupSort` in pairs.

    Example:
        >>> import torch
        >>> from spectral_param.nn import MaxMin
        >>> MaxMin()(torch.tensor([[2.0, 1.0, 3.0, 4.0]]))
        tensor([[1., 2., 3., 4.]])
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__(2, dim)
