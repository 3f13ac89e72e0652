"""Matrices that the SVD of a weight gives: from the factors where it is registered, by ``torch.linalg`` where not."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.functional.factorization import svd_weight
from spectral_param.parametrization.lookup import matrix_parametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.spectrum.as_matrix import check_square, matrix_of
from spectral_param.torch_state.modes import traced_or_transformed
from spectral_param.torch_state.precision import full_precision


class SVD(NamedTuple):
    """A reduced singular value decomposition, W = U diag(S) Vh.

    Attributes:
        U: (…, p, k), orthonormal columns.
        S: (…, k), descending, not negative.
        Vh: (…, k, q), orthonormal rows.
    """

    U: Tensor
    S: Tensor
    Vh: Tensor


def svd(module: nn.Module, tensor_name: str = "weight") -> SVD:
    """The singular value decomposition of a weight, in the form of ``torch.linalg.svd(W, full_matrices=False)``.

    For a registered weight the columns of U and V are put in the order of ``|σ|``, and the sign of σ goes into U; no
    decomposition is computed, and gradients are finite where singular values are equal.

    Args:
        module: the module that owns the weight.
        tensor_name: a weight of at least two dimensions.

    Returns:
        U, S and Vh, with a leading dimension where the weight is read as several matrices; differentiable.

    Raises:
        ValueError: if there is no such weight, or it is no matrix.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, svd
        >>> layer = register_svd_parametrization(torch.nn.Linear(5, 3))
        >>> u, s, vh = svd(layer)
        >>> torch.allclose(u @ torch.diag(s) @ vh, layer.weight, atol=1e-6)
        True
    """
    parametrization = matrix_parametrization(module, tensor_name)
    if parametrization is None:
        return SVD(*torch.linalg.svd(matrix_of(module, tensor_name), full_matrices=False))
    u, sigma, v = parametrization.svd
    with full_precision(sigma.device.type):
        plainly, k = traced_or_transformed(), sigma.shape[-1]
        left, right = u.columns(k, plainly=plainly), v.columns(k, plainly=plainly)
    values, order = sigma.abs().sort(dim=-1, descending=True)
    order = order.unsqueeze(-2)
    signed = torch.where(sigma.unsqueeze(-2) < 0, -left, left)
    return SVD(
        signed.take_along_dim(order, -1),
        values,
        right.take_along_dim(order, -1).mT,
    )


def inverse(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """The inverse of a square weight: W⁻¹ = V diag(1/σ) Uᵀ for a registered one.

    Args:
        module: the module that owns the weight.
        tensor_name: a square weight.

    Returns:
        (n, n), or (blocks, n, n); differentiable.

    Raises:
        ValueError: if there is no such weight, it is not square, or singular. Under a compiler or a functorch
            transform nothing can be raised for a singular weight, and there is infinity in what comes.

    Example:
        >>> import torch
        >>> from spectral_param import inverse, register_svd_parametrization
        >>> layer = register_svd_parametrization(torch.nn.Linear(4, 4), init="orthogonal")
        >>> torch.allclose(inverse(layer), layer.weight.mT, atol=1e-6)
        True
    """
    parametrization = matrix_parametrization(module, tensor_name)
    if parametrization is None:
        matrix = matrix_of(module, tensor_name)
        check_square(tensor_name, matrix.shape[-2:])
        result, info = torch.linalg.inv_ex(matrix)
        _check_regular(tensor_name, info != 0)
        return result
    reciprocal = 1 / _regular_sigma(parametrization, tensor_name)
    return _transposed_svd(parametrization, reciprocal)


def pinv(module: nn.Module, tensor_name: str = "weight") -> Tensor:
    """The Moore-Penrose pseudoinverse of a weight: W⁺ = V diag(1/σ) Uᵀ, with 0 in the place of 1/0.

    A singular value counts as zero up to ``max(p, q) · eps`` of the largest, as in :func:`torch.linalg.pinv`.

    Args:
        module: the module that owns the weight.
        tensor_name: a weight of at least two dimensions.

    Returns:
        (q, p), or (blocks, q, p); differentiable.

    Raises:
        ValueError: if there is no such weight, or it is no matrix.

    Example:
        >>> import torch
        >>> from spectral_param import pinv, register_svd_parametrization
        >>> layer = register_svd_parametrization(torch.nn.Linear(3, 5))
        >>> torch.allclose(pinv(layer) @ layer.weight, torch.eye(3), atol=1e-5)
        True
    """
    parametrization = matrix_parametrization(module, tensor_name)
    if parametrization is None:
        return torch.linalg.pinv(matrix_of(module, tensor_name))
    sigma = parametrization.sigma
    tolerance = max(parametrization.shape) * torch.finfo(sigma.dtype).eps
    counts = sigma.abs() > tolerance * sigma.detach().abs().amax(-1, keepdim=True)
    reciprocal = torch.where(counts, 1 / torch.where(counts, sigma, 1.0), 0.0)
    return _transposed_svd(parametrization, reciprocal)


def solve(module: nn.Module, b: Tensor, tensor_name: str = "weight") -> Tensor:
    """Solves W x = b for a square weight: x = V diag(1/σ) Uᵀ b for a registered one, W never built.

    Args:
        module: the module that owns the weight.
        b: (n,), or columns (…, n, r); for a weight read as several matrices also (blocks, n). Of a floating dtype no
            wider than the weight's.
        tensor_name: a square weight.

    Returns:
        x in the shape of ``b``, with a leading dimension where the weight is read as several matrices, and in its
        dtype; differentiable.

    Raises:
        TypeError: if ``b`` is of another dtype.
        ValueError: if the shape of ``b`` does not fit, there is no such weight, it is not square, or singular; for
            the last see :func:`inverse`.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, solve
        >>> layer, x = register_svd_parametrization(torch.nn.Linear(4, 4, bias=False), init="orthogonal"), torch.ones(4)
        >>> solve(layer, layer(x)).detach()
        tensor([1.0000, 1.0000, 1.0000, 1.0000])
    """
    parametrization = matrix_parametrization(module, tensor_name)
    if parametrization is None:
        matrix = matrix_of(module, tensor_name)
        check_square(tensor_name, matrix.shape[-2:])
        columns, is_vector = _as_columns(b, matrix.shape[:-1], matrix.dtype)
        x, info = torch.linalg.solve_ex(matrix, columns)
        _check_regular(tensor_name, info != 0)
    else:
        sigma = _regular_sigma(parametrization, tensor_name)
        columns, is_vector = _as_columns(b, sigma.shape, sigma.dtype)
        (u, _, v), plainly = parametrization.svd, traced_or_transformed()
        with full_precision(sigma.device.type):
            scaled = u.apply(columns, transpose=True, plainly=plainly) / sigma.unsqueeze(-1)
            x = v.apply(scaled, plainly=plainly)
    return (x.squeeze(-1) if is_vector else x).to(b.dtype)


# --------------------------------------------------------------------------------------------------- from the factors


def _transposed_svd(parametrization: SVDParametrization, sigma: Tensor) -> Tensor:
    """V diag(σ) Uᵀ for another σ."""
    u, _, v = parametrization.svd
    with full_precision(sigma.device.type):
        return svd_weight(v, sigma, u, plainly=traced_or_transformed())


def _regular_sigma(parametrization: SVDParametrization, tensor_name: str) -> Tensor:
    check_square(tensor_name, parametrization.shape)
    sigma = parametrization.sigma
    _check_regular(tensor_name, sigma == 0)
    return sigma


def _check_regular(tensor_name: str, is_singular: Tensor) -> None:
    if not traced_or_transformed() and is_singular.any():
        raise ValueError(f"tensor_name: expected an invertible weight, {tensor_name!r} is singular.")


def _as_columns(b: Tensor, lead: torch.Size, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """The right-hand side as columns, and whether it is one alone; ``lead`` is the weight's shape but its last dim."""
    if not b.dtype.is_floating_point or torch.promote_types(b.dtype, dtype) != dtype:
        raise TypeError(f"b: expected a floating dtype no wider than {dtype}, got {b.dtype}.")
    is_vector = b.dim() == 1 or b.shape == lead
    columns = b.unsqueeze(-1) if is_vector else b
    if columns.dim() < 2 or columns.shape[-2] != lead[-1]:
        raise ValueError(f"b: expected ({lead[-1]},) or (…, {lead[-1]}, r), got {tuple(b.shape)}.")
    return columns.to(dtype), is_vector
