"""The part of normalisation that has an exact Lipschitz constant: the mean is taken off, and nothing is divided."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Centering(nn.Module):
    """Takes off each sample's mean: an orthogonal projection, so exactly 1-Lipschitz and the same in evaluation.

    Division by a standard deviation, as in layer normalisation, has no finite constant, and is left out.

    Args:
        dim: over which dimensions the mean is taken: by default those of an image, for each channel.

    Raises:
        ValueError: if dimension 0, of the samples, is among them.

    Example:
        >>> import torch
        >>> from spectral_param.nn import Centering
        >>> Centering(dim=1)(torch.tensor([[1.0, 2.0, 6.0]]))
        tensor([[-2., -1.,  3.]])
    """

    def __init__(self, dim: int | Sequence[int] = (-2, -1)) -> None:
        super().__init__()
        self.dim = (dim,) if isinstance(dim, int) else tuple(dim)
        if 0 in self.dim or not self.dim:
            raise ValueError(f"dim: expected dimensions of a sample, got {dim}.")

    def forward(self, input: Tensor) -> Tensor:
        """Subtracts the mean; shape and dtype stay."""
        return input - input.mean(self.dim, keepdim=True)

    def extra_repr(self) -> str:
        """Dimensions, for printing."""
        return f"dim={self.dim}"
