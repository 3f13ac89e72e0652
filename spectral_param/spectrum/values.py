"""Numbers that the singular values of a weight give: from σ where it is registered, by a decomposition where not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import matrix_parametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.spectrum.as_matrix import check_square, matrix_of


def singular_values(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """Singular values of a weight, largest first.

    For a registered weight they are |σ|, without a decomposition; otherwise :func:`torch.linalg.svdvals` of the weight
    read as :func:`~spectral_param.register_svd_parametrization` reads it.

    Args:
        module: the module that owns the weight.
        tensor_name: a weight of at least two dimensions.

    Returns:
        (k,), or (blocks, k) where the weight is read as several matrices, each with its own; differentiable.

    Raises:
        ValueError: if there is no such weight, or it is no matrix.

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
    """Largest singular value of a weight: how much it can stretch a vector.

    Args and errors as for :func:`singular_values`.

    Returns:
        A scalar, or (blocks,); differentiable.

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
    """Largest distance of a singular value from ``center``: max |σ - 1| in the paper's Figure 4. Over all blocks.

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


def condition_number(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """Largest singular value over the smallest: how unevenly a weight stretches; ``inf`` where the smallest is zero.

    Args and errors as for :func:`singular_values`.

    Returns:
        A scalar, or (blocks,); differentiable.

    Example:
        >>> import torch
        >>> from spectral_param import condition_number
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.0, 3.0], [-6.0, 0.0]])
        >>> condition_number(layer).item()
        2.0
    """
    sigma = _unsorted(module, tensor_name)
    least = sigma.amin(-1)
    is_singular = least == 0
    return torch.where(is_singular, torch.inf, sigma.amax(-1) / least.masked_fill(is_singular, 1.0))


def log_abs_det(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """Log |det W| = Σ log|σ| of a square weight: what a linear layer adds to the log-density of a flow.

    Args:
        module: the module that owns the weight.
        tensor_name: a square weight.

    Returns:
        A scalar, or (blocks,); ``-inf`` for a singular weight; differentiable.

    Raises:
        ValueError: as for :func:`singular_values`, or if the weight is not square.

    Example:
        >>> import torch
        >>> from spectral_param import log_abs_det
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.0, 2.0], [-0.5, 0.0]])
        >>> log_abs_det(layer).item()
        0.0
    """
    parametrization = matrix_parametrization(module, tensor_name)
    if parametrization is not None:
        check_square(tensor_name, parametrization.shape)
        return parametrization.sigma.abs().log().sum(-1)
    matrix = matrix_of(module, tensor_name)
    check_square(tensor_name, matrix.shape[-2:])
    return torch.linalg.slogdet(matrix).logabsdet


def _unsorted(module: nn.Module, tensor_name: str) -> Tensor:
    parametrization = SVDParametrization.alone_on(module, tensor_name)
    if parametrization is not None:
        return parametrization.sigma.abs()
    return torch.linalg.svdvals(matrix_of(module, tensor_name))
