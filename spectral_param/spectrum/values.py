"""Numbers that the singular values of a weight give: from σ where it is registered, by a decomposition where not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import check_module, matrix_parametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma.level import finite
from spectral_param.spectrum.as_matrix import check_square, matrix_of, weight_of
from spectral_param.spectrum.operator import convolution, operator_norm_bound, operator_singular_values


def singular_values(
    module: nn.Module, tensor_name: str = "weight", *, operator: tuple[int, ...] | None = None, exact: bool = True
) -> Tensor:
    """Singular values of a weight, largest first.

    For a registered weight they are ``|σ|``, without a decomposition; otherwise :func:`torch.linalg.svdvals` of the
    weight read as :func:`~spectral_param.register_svd_parametrization` reads it.

    With ``operator`` they are those of a convolution, as its kernel, strides and padding make it, as a map of images
    of that size, of which the kernel's as a matrix say little. Images on a circle (``padding_mode="circular"`` to the
    same size, strides that divide it) are read at each frequency, exactly. With any other padding the operator is
    written out as a matrix, exactly, for small images; for images of any size ``exact=False`` gives upper bounds, each
    at least the singular value in its place.

    Args:
        module: the module that owns the weight.
        tensor_name: a weight of at least two dimensions.
        operator: sides of the image that the convolution is given, (height, width) in two dimensions.
        exact: whether upper bounds are refused; it matters with ``operator`` alone.

    Returns:
        (k,), or (blocks, k) where the weight is read as several matrices, each with its own; differentiable. With
        ``operator`` (k,), over all groups.

    Raises:
        ValueError: if there is no such weight, or it is no matrix; with ``operator`` if the module is no convolution,
            the image does not suit it, or is too large to be written out where it has to be.

    Example:
        >>> import torch
        >>> from spectral_param import singular_values
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.0, 3.0], [-4.0, 0.0]])
        >>> singular_values(layer).detach()
        tensor([4., 3.])
        >>> mean = torch.nn.Conv1d(1, 1, 2, padding="same", padding_mode="circular", bias=False)
        >>> _ = torch.nn.init.constant_(mean.weight, 0.5)
        >>> singular_values(mean, operator=(3,)).detach()
        tensor([1.0000, 0.5000, 0.5000])
    """
    if operator is not None:
        geometry = convolution(module, tensor_name)
        return operator_singular_values(weight_of(module, tensor_name), geometry, operator, exact=exact)
    return _unsorted(module, tensor_name).sort(dim=-1, descending=True).values


def spectral_norm(
    module: nn.Module, tensor_name: str = "weight", *, operator: tuple[int, ...] | None = None, exact: bool = True
) -> Tensor:
    """Largest singular value of a weight: how much it can stretch a vector, or with ``operator`` an image.

    Args and errors as for :func:`singular_values`. With ``exact=False`` it is, for convolutions of any size and
    padding, a number that is not below the norm, at a fraction of the time.

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
    if operator is not None and not exact:
        return operator_norm_bound(weight_of(module, tensor_name), convolution(module, tensor_name), operator)
    if operator is not None:
        return singular_values(module, tensor_name, operator=operator)[0]
    return _unsorted(module, tensor_name).amax(-1)


def spectral_margin(module: nn.Module, tensor_name: str = "weight", center: float = 1.0) -> Tensor:
    """Largest distance of a singular value from ``center``: ``max |σ - 1|`` in the paper's Figure 4. Over all blocks.

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
    return (_unsorted(module, tensor_name) - finite("center", center)).abs().amax()


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
    """``log |det W| = Σ log |σ|`` of a square weight: what a linear layer adds to the log-density of a flow.

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
    check_module("module", module)
    parametrization = SVDParametrization.alone_on(module, tensor_name)
    if parametrization is not None:
        return parametrization.sigma.abs()
    return torch.linalg.svdvals(matrix_of(module, tensor_name))
