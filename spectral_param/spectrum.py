"""Reading the singular values of a weight: from σ where it is registered, by a decomposition where it is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.injection import parametrization_lists
from spectral_param.parametrization import SVDParametrization
from spectral_param.registration import is_registered


def singular_values(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """Singular values of a weight, largest first.

    For a registered weight they are |σ|, without a decomposition; otherwise :func:`torch.linalg.svdvals` of the weight
    read as (rows, everything else).

    Args:
        module: the module that owns the weight.
        tensor_name: a weight of at least two dimensions.

    Returns:
        (k,), or (chunks, k) for a weight registered in chunks, each block's own; differentiable.

    Raises:
        ValueError: if there is no such weight, or it has fewer than two dimensions.

    Example:
        >>> import torch
        >>> from spectral_param import singular_values
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.0, 3.0], [-4.0, 0.0]])
        >>> singular_values(layer).detach()
        tensor([4., 3.])
    """
    return _unsorted(module, tensor_name).sort(dim=-1, descending=True).values


def spectral_norm(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """Largest singular value of a weight: how much it can stretch a vector. Blocks of chunks each have their own.

    Args and errors as for :func:`singular_values`.

    Returns:
        A scalar, or (chunks,); differentiable.

    Example:
        >>> import torch
        >>> from spectral_param import spectral_norm
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.0, 3.0], [-4.0, 0.0]])
        >>> spectral_norm(layer).item()
        4.0
    """
    return _unsorted(module, tensor_name).amax(-1)


def spectral_margin(module: nn.Module, tensor_name: str = "weight", center: float = 1.0) -> Tensor:
    """Largest distance of a singular value from ``center``: max |σ - 1| in the paper's Figure 4. Over all chunks.

    Args and errors as for :func:`singular_values`.

    Returns:
        A scalar, differentiable.

    Example:
        >>> import torch
        >>> from spectral_param import spectral_margin
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.0, 1.25], [-0.5, 0.0]])
        >>> spectral_margin(layer).item()
        0.5
    """
    return (_unsorted(module, tensor_name) - center).abs().amax()


def _unsorted(module: nn.Module, tensor_name: str) -> Tensor:
    if is_registered(module, tensor_name):
        held = parametrization_lists(module)[tensor_name]
        if len(held) == 1:  # with a parametrization on top, σ is not W's
            first: SVDParametrization = held[0]
            return first.sigma.abs()
    if tensor_name not in module._parameters and not parametrize.is_parametrized(module, tensor_name):
        raise ValueError(f"tensor_name: {type(module).__name__} has no weight {tensor_name!r}.")
    weight: Tensor = getattr(module, tensor_name)
    if weight.dim() < 2:
        shape = tuple(weight.shape)
        raise ValueError(
            f"tensor_name: expected a weight of two dimensions or more, {tensor_name!r} has shape {shape}."
        )
    matrix = weight.flatten(1)
    return torch.linalg.svdvals(matrix.float() if matrix.dtype.itemsize < 4 else matrix)
