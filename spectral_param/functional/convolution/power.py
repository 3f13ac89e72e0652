"""A warm power iteration on images: what a convolution is found to stretch them by, from below."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.functional.convolution.geometry import Geometry
from spectral_param.functional.convolution.written_out import adjoint, convolve


@torch.no_grad()
def power_step(weight: Tensor, geometry: Geometry, image: Tensor) -> tuple[Tensor, Tensor]:
    """One step, two convolutions: by how much an image is stretched, and an image that is stretched at least as much.

    Args:
        weight: as the module has it.
        geometry: of the module.
        image: (1, channels, sides…), not zero.

    Returns:
        ‖T x‖ / ‖x‖, which the norm of T is at least, and TᵀT x, scaled.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.functional.convolution.power import power_step
        >>> conv, image = nn.Conv1d(1, 1, 1), torch.ones(1, 1, 4)
        >>> power_step(torch.tensor([[[3.0]]]), geometry_of(conv), image)
        (tensor(3.), tensor([[[0.5000, 0.5000, 0.5000, 0.5000]]]))
    """
    unit = image / torch.linalg.vector_norm(image)
    stretched = convolve(unit, weight, geometry)
    back = adjoint(stretched, weight, geometry, image.shape[2:])
    norm, length = torch.linalg.vector_norm(stretched), torch.linalg.vector_norm(back)
    return norm, torch.where(length > 0, back / length, unit)
