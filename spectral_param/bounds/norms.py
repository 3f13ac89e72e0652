"""Norms of a weight as a whole, from σ where it is registered, in float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import is_registered, parametrization_lists
from spectral_param.spectrum.values import singular_values, spectral_norm


def operator_norm(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """‖W‖₂; for a weight registered in chunks √Σ‖W_c‖₂², which is at least that.

    Args:
        module: the owner.
        tensor_name: its weight.

    Returns:
        A scalar, differentiable.

    Example:
        >>> import torch
        >>> from spectral_param.bounds.norms import operator_norm
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.diag(torch.tensor([3.0, -4.0]))
        >>> operator_norm(layer).item()
        4.0
    """
    return torch.linalg.vector_norm(_wide(spectral_norm(module, tensor_name)))


def both_norms(module: nn.Module, tensor_name: str = "weight", *, over_range: bool = False) -> tuple[Tensor, Tensor]:
    """‖W‖₂ (see :func:`operator_norm`) and ‖W‖_F, both from the singular values.

    Args:
        module: the owner.
        tensor_name: its weight.
        over_range: for a registered weight the greatest that they can become within the range of its σ map, infinite
            where that has none.

    Returns:
        Two scalars, without a graph.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Band, register_svd_parametrization
        >>> from spectral_param.bounds.norms import both_norms
        >>> layer = register_svd_parametrization(nn.Linear(4, 4), sigma=Band(0.5), init="orthogonal")
        >>> [norm.item() for norm in both_norms(layer)], [norm.item() for norm in both_norms(layer, over_range=True)]
        ([1.0, 2.0], [1.5, 3.0])
    """
    sigma = _wide(singular_values(module, tensor_name).detach())
    if over_range and is_registered(module, tensor_name):
        held = parametrization_lists(module)[tensor_name]
        if len(held) == 1:
            low, high = (_wide(torch.as_tensor(edge)) for edge in (held[0].sigma_map.low, held[0].sigma_map.high))
            sigma = torch.maximum(low.abs(), high.abs()).expand_as(sigma)
    return torch.linalg.vector_norm(sigma.amax(-1)), torch.linalg.vector_norm(sigma)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)
