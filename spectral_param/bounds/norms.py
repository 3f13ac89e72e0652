"""Norms of a weight as a whole, from σ where it is registered, in float64 on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.bounds.known_call import departure, known_calls, methods_in_call
from spectral_param.parametrization.lookup import parametrization_lists
from spectral_param.parametrization.shifted import ShiftedParametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.spectrum.as_matrix import matrix_of, weight_of

_LIST = methods_in_call(parametrize.ParametrizationList)
_FORMS = known_calls(ShiftedParametrization, TurnedParametrization, SVDParametrization)  # what is derived first


def operator_norm(module: nn.Module, tensor_name: str = "weight", *, is_built: bool = True) -> Tensor:
    """‖W‖₂, rounded up; for a weight registered in chunks √Σ‖W_c‖₂², which is at least that.

    See :func:`operator_norms`.

    Example:
        >>> import torch
        >>> from spectral_param.bounds.norms import operator_norm
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.diag(torch.tensor([3.0, -4.0]))
        >>> round(operator_norm(layer).item(), 9)
        4.0
    """
    return torch.linalg.vector_norm(operator_norms(module, tensor_name, is_built=is_built))


def operator_norms(module: nn.Module, tensor_name: str = "weight", *, is_built: bool = True) -> Tensor:
    """‖W‖₂ of each block, rounded up, so that it is not below that of the W which the module works with.

    A registered W has max|σ| but for the rounding of its products, which was measured to stay well below the
    ``ε (8 max|σ| + ‖σ‖)`` that is added here, and for that to the dtype of the layer where it is coarser, at most
    ``ε/2 ‖σ‖``. The operator of a kernel between shifts has max|σ|, off by as much again for each shift. A plain W is
    decomposed in float64, whose ε counts, and so is one on a frozen base, which may have been rounded since.

    Args:
        module: the owner.
        tensor_name: its weight.
        is_built: whether a registered W is built, in the dtype of the layer; ``SVDLinear`` does without.

    Returns:
        A scalar, or (blocks,); differentiable.

    Raises:
        TypeError: if something listens to the SVD of a registered weight, or has taken its place.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Fixed, register_svd_parametrization
        >>> from spectral_param.bounds.norms import operator_norms
        >>> layer = register_svd_parametrization(nn.Linear(2, 4), chunks=2, sigma=Fixed(0.5), init="orthogonal")
        >>> [round(norm, 4) for norm in operator_norms(layer).tolist()]
        [0.5, 0.5]
    """
    sigma, weight, factors = _spectrum(module, tensor_name)
    greatest, length = sigma.amax(-1), torch.linalg.vector_norm(sigma.detach(), dim=-1)
    norm = greatest + factors * (8 * greatest.detach() + length)
    return norm + weight / 2 * length if is_built and weight > factors else norm


def rounding(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """What the norm of a weight may be off by as it is built: see :func:`operator_norms`; 0 for a plain one.

    Args:
        module: the owner.
        tensor_name: its weight.

    Returns:
        A scalar, without a graph.

    Raises:
        TypeError: as for :func:`operator_norms`.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.norms import rounding
        >>> rounding(nn.Linear(2, 2)).item()
        0.0
    """
    if SVDParametrization.alone_on(module, tensor_name) is None:
        return torch.zeros((), dtype=torch.float64)
    sigma, weight, factors = _spectrum(module, tensor_name)
    greatest, length = sigma.detach().amax(-1), torch.linalg.vector_norm(sigma.detach(), dim=-1)
    return torch.linalg.vector_norm(factors * (8 * greatest + length) + weight / 2 * length)


def weight_in_evaluation(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """A weight as the module works with it in evaluation, whatever its mode.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.norms import weight_in_evaluation
        >>> weight_in_evaluation(nn.Linear(2, 3)).shape
        torch.Size([3, 2])
    """
    with _in_evaluation(module):
        return weight_of(module, tensor_name)


def both_norms(module: nn.Module, tensor_name: str = "weight", *, over_range: bool = False) -> tuple[Tensor, Tensor]:
    """‖W‖₂ (see :func:`operator_norm`; not rounded up) and ‖W‖_F, both from the singular values.

    Args:
        module: the owner.
        tensor_name: its weight.
        over_range: for a registered weight the greatest that they can become within the range of its σ map, infinite
            where that has none.

    Returns:
        Two scalars, without a graph.

    Raises:
        TypeError: as for :func:`operator_norms`.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Band, register_svd_parametrization
        >>> from spectral_param.bounds.norms import both_norms
        >>> layer = register_svd_parametrization(nn.Linear(4, 4), sigma=Band(0.5), init="orthogonal")
        >>> [norm.item() for norm in both_norms(layer)], [norm.item() for norm in both_norms(layer, over_range=True)]
        ([1.0, 2.0], [1.5, 3.0])
    """
    sigma = _spectrum(module, tensor_name)[0].detach()
    parametrization = SVDParametrization.alone_on(module, tensor_name)
    if over_range and parametrization is not None:
        sigma_map = parametrization.sigma_map
        low, high = (_wide(torch.as_tensor(edge)) for edge in (sigma_map.low, sigma_map.high))
        greatest = torch.maximum(low.abs(), high.abs())
        if isinstance(parametrization, TurnedParametrization):
            sigma = _wide(parametrization.sigma.detach().abs())
            sigma[..., : parametrization.rank] = greatest
        else:
            sigma = greatest.expand_as(sigma)
    return torch.linalg.vector_norm(sigma.amax(-1)), torch.linalg.vector_norm(sigma)


def _spectrum(module: nn.Module, tensor_name: str) -> tuple[Tensor, float, float]:
    """Singular values of the weight as it is used, (k,) or (blocks, k); ε of its dtype and of what it is made of."""
    parametrization = SVDParametrization.alone_on(module, tensor_name)
    epsilon = torch.finfo(torch.float64).eps
    if parametrization is None:
        return _decomposed(module, tensor_name), epsilon, epsilon
    held = parametrization_lists(module)[tensor_name]
    form = next(cls for cls in _FORMS if isinstance(parametrization, cls))
    if change := departure(held, _LIST) or departure(parametrization, _FORMS[form]):
        raise TypeError(f"module: expected {tensor_name!r} to be its SVD, got a parametrization with {change}.")
    if isinstance(parametrization, TurnedParametrization):
        return _decomposed(module, tensor_name), torch.finfo(parametrization.dtype).eps, epsilon
    weight, factors = (torch.finfo(dtype).eps for dtype in (parametrization.dtype, parametrization.factors[0].dtype))
    if isinstance(parametrization, ShiftedParametrization):
        taps = math.prod(parametrization.matrices.weight_shape) / math.prod(parametrization.shape)
        # entries that are off by as much each are off together by √taps times as much as an operator, at most
        weight, factors = weight * math.sqrt(taps), factors * (1 + sum(parametrization.shifts))
    return _wide(parametrization.sigma.abs()), weight, factors


def _decomposed(module: nn.Module, tensor_name: str) -> Tensor:
    with _in_evaluation(module):
        matrix = matrix_of(module, tensor_name)
    return torch.linalg.svdvals(matrix.to("cpu", torch.promote_types(matrix.dtype, torch.float64)))


@contextmanager
def _in_evaluation(module: nn.Module) -> Iterator[None]:
    """Parametrizations of others, such as torch's ``spectral_norm``, may depend on the mode and change when read."""
    lists = parametrization_lists(module).modules() if parametrize.is_parametrized(module) else ()
    trained = [held for held in lists if held.training]
    for held in trained:
        held.training = False
    try:
        yield
    finally:
        for held in trained:
            held.training = True


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)
