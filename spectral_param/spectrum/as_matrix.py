"""Where a reading of a weight comes from: its parametrization, or the weight itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.parametrization.blocks import matrices_of
from spectral_param.parametrization.lookup import (
    check_module,
    check_tensor_name,
    is_registered,
    parameters_in_words,
    parametrization_lists,
)
from spectral_param.torch_state.precision import wide


def matrix_of(module: nn.Module, tensor_name: str) -> Tensor:
    """The weight as the matrix or the matrices that it is read as.

    See :func:`~spectral_param.parametrization.blocks.matrices_of`.

    Returns:
        (p, q), or (blocks, p, q) for more than one, in float32 or float64; differentiable.

    Raises:
        ValueError: if there is no such weight, or it is no matrix.

    Example:
        >>> from torch import nn
        >>> from spectral_param.spectrum.as_matrix import matrix_of
        >>> matrix_of(nn.Conv2d(16, 32, 3), "weight").shape, matrix_of(nn.Bilinear(3, 4, 5), "weight").shape
        (torch.Size([32, 144]), torch.Size([5, 3, 4]))
    """
    weight = weight_of(module, tensor_name)
    if is_registered(module, tensor_name):
        matrices = parametrization_lists(module)[tensor_name][0].matrices
    else:
        matrices = matrices_of(module, weight)
    stack = matrices.of(wide(weight))
    return stack.squeeze(0) if matrices.count == 1 else stack


def weight_of(module: nn.Module, tensor_name: str) -> Tensor:
    """The weight as the module works with it.

    Raises:
        TypeError: if the module is none, or ``tensor_name`` no string.
        ValueError: if there is no such weight.

    Example:
        >>> from torch import nn
        >>> from spectral_param.spectrum.as_matrix import weight_of
        >>> weight_of(nn.Linear(2, 2), "wieght")
        Traceback (most recent call last):
        ValueError: tensor_name: Linear has no weight 'wieght'; it has weight, bias.
    """
    check_module("module", module)
    check_tensor_name(tensor_name)
    owner, own = type(module).__name__, module._parameters.get(tensor_name)
    if own is None and not parametrize.is_parametrized(module, tensor_name):
        others = parameters_in_words(module, tensor_name, "spectral_table")
        raise ValueError(f"tensor_name: {owner} has no weight {tensor_name!r}; {others}.")
    if own is not None and nn.parameter.is_lazy(own):
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} has no shape before the first forward.")
    weight: Tensor = getattr(module, tensor_name)
    return weight


def check_square(tensor_name: str, shape: Sequence[int]) -> None:
    """Raises ``ValueError`` unless the shape of a matrix is square.

    Example:
        >>> from spectral_param.spectrum.as_matrix import check_square
        >>> check_square("weight", (2, 2))
    """
    if shape[0] != shape[1]:
        raise ValueError(f"tensor_name: expected a square weight, {tensor_name!r} is read as {shape[0]}×{shape[1]}.")
