"""Singular values of a weight in training, however it is spread over ranks: on the CPU, in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from spectral_param.parametrization.blocks import Matrices, matrices_of
from spectral_param.parametrization.stacked import on_top_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.spectrum.dense.bidiagonal import greatest_singular_value
from spectral_param.spectrum.operator import convolution, operator_norm_bound, operator_singular_values
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.shards import whole


@torch.no_grad()
def sigma_in_blocks(parametrization: SVDParametrization, gather: Callable[[Tensor], Tensor] = whole) -> Tensor:
    """|σ| of a weight in SVD form: without building it, unless another parametrization stands on top.

    A collective where it is sharded: every rank has to call it, in the same order.

    Args:
        parametrization: of the weight.
        gather: gives the whole tensor for a rank's part of one.

    Returns:
        Float32 on the CPU, (chunks, min(p, q)): block by block, unsorted.

    Example:
        >>> from torch import nn
        >>> from spectral_param import SVDParametrization, register_svd_parametrization
        >>> from spectral_param.spectrum.whole_sigma import sigma_in_blocks
        >>> layer = register_svd_parametrization(nn.Linear(2, 2), init="orthogonal")
        >>> sigma_in_blocks(SVDParametrization.alone_on(layer, "weight"))
        tensor([[1., 1.]])
    """
    if on_top_of(parametrization):
        return _decomposed(parametrization.matrices, parametrization.parametrization_list())
    raw = parametrization.raw_sigma
    entire = torch.empty(parametrization.raw_shape) if raw is None else gather(raw.detach())
    sigma = parametrization.sigma_of(entire.reshape(parametrization.raw_shape))
    return sigma.abs().to("cpu", torch.float32, copy=True).reshape(parametrization.chunks, min(parametrization.shape))


@torch.no_grad()
def dense_singular_values(module: nn.Module, weight: Tensor, chunks: int = 1) -> Tensor:
    """Singular values of a plain weight, by ``torch.linalg.svdvals`` of the weight as registration would read it.

    Takes about 0.6, 21 and 150 ms for a square matrix of 128, 512 and 1024 on one CPU core. A collective for a
    ``DTensor``.

    Args:
        module: the owner.
        weight: its weight, one that :func:`~spectral_param.parametrization.blocks.matrices_of` reads; no flat shard.
        chunks: blocks along dim 0, each read as a matrix of its own.

    Returns:
        Float32 on the CPU, (matrices, k), each row descending; NaN for a weight that is not finite.
    """
    return _decomposed(matrices_of(module, weight, chunks), weight)


def _decomposed(matrices: Matrices, weight: Tensor) -> Tensor:
    weight = wide(whole(weight.detach()))
    if not weight.isfinite().all():
        return torch.full((matrices.count, min(matrices.p, matrices.q)), torch.nan)
    return torch.linalg.svdvals(matrices.of(weight)).to("cpu", torch.float32)


@torch.no_grad()
def operator_sigma(module: nn.Module, weight: Tensor, image: tuple[int, ...]) -> Tensor:
    """Singular values of a convolution as a map of images, or upper bounds of them: ``exact=False``.

    A collective for a ``DTensor``.

    Args:
        module: the owner.
        weight: its kernel.
        image: sides of what the module is given.

    Returns:
        Float32 on the CPU, (1, k), descending; NaN for a kernel that is not finite.
    """
    weight = wide(whole(weight.detach()))
    sigma = operator_singular_values(weight.nan_to_num(), convolution(module), image, exact=False).cpu().float()
    return sigma.unsqueeze(0) if weight.isfinite().all() else torch.full((1, len(sigma)), torch.nan)


@torch.no_grad()
def operator_numbers(module: nn.Module, weight: Tensor, image: tuple[int, ...]) -> dict[str, Tensor]:
    """``sigma_max`` and ``stable_rank`` of a convolution as a map of images, for less.

    Args:
        module: the owner.
        weight: its kernel.
        image: sides of what the module is given.

    Returns:
        Both (1,), float64 on the CPU: the first a bound, at most 1 % above what :func:`operator_sigma` gives.

    Example:
        >>> from torch import nn
        >>> from spectral_param.spectrum.whole_sigma import operator_numbers
        >>> conv = nn.Conv1d(1, 1, 1)
        >>> round(operator_numbers(conv, conv.weight, (8,))["stable_rank"].item())
        8
    """
    weight, geometry = wide(whole(weight.detach())), convolution(module)
    greatest = operator_norm_bound(weight, geometry, image).cpu()
    entire = weight.double().square().sum().cpu() * math.prod(side.m for side in geometry.sides(image))
    return {"sigma_max": greatest.reshape(1), "stable_rank": (entire / greatest.square()).reshape(1)}


@torch.no_grad()
def leading_numbers(module: nn.Module, weight: Tensor, chunks: int = 1) -> dict[str, Tensor]:
    """``sigma_max`` and ``stable_rank`` of each matrix, from a few products: 1 ms for one of 512 on a CPU core.

    A collective for a ``DTensor``. σ is found from below, to about 1 %.

    Args:
        module: the owner.
        weight: its weight, as :func:`dense_singular_values` takes it.
        chunks: blocks along dim 0, each read as a matrix of its own.

    Returns:
        Both (matrices,), float64 on the CPU; NaN for a matrix that is not finite, and for the rank of a zero one.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.spectrum.whole_sigma import leading_numbers
        >>> leading_numbers(nn.Linear(2, 2), torch.diag(torch.tensor([2.0, 1.0])))["stable_rank"]
        tensor([1.2500], dtype=torch.float64)
    """
    matrices = matrices_of(module, weight, chunks)
    stack = matrices.of(wide(whole(weight.detach())))
    sizes = torch.linalg.vector_norm(stack, dim=(1, 2), dtype=torch.float64).cpu()
    greatest = torch.tensor(
        [
            greatest_singular_value(matrix, size) if math.isfinite(size) else math.nan
            for matrix, size in zip(stack, sizes.tolist(), strict=True)
        ],
        dtype=torch.float64,
    )
    return {"sigma_max": greatest, "stable_rank": (sizes / greatest).square()}
