"""A linear layer in SVD form that applies V, σ and U to its input in turn, and never builds W."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.factorization import is_low_rank
from spectral_param.householder import traced_or_transformed
from spectral_param.low_rank import Sizes
from spectral_param.precision import autocast_is_on


def apply_linear(layer: nn.Linear, input: Tensor) -> Tensor:
    """``x Wᵀ + b`` from the factors of W, in float32 or float64, given back in the dtype that ``nn.Linear`` would give.

    Args:
        layer: a linear layer whose weight is an SVD and nothing more.
        input: x, (…, in_features) in the dtype of the layer; under autocast as ``nn.Linear`` takes it.

    Returns:
        (…, out_features).

    Raises:
        ValueError: if the last dimension does not fit.
        TypeError: if the dtype does not.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization
        >>> from spectral_param.matrix_free import apply_linear
        >>> layer, x = register_svd_parametrization(torch.nn.Linear(4, 3)), torch.randn(2, 4)
        >>> torch.allclose(apply_linear(layer, x), layer(x), atol=1e-5)
        True
    """
    if input.dim() == 0 or input.shape[-1] != layer.in_features:
        raise ValueError(f"input: expected (…, {layer.in_features}), got {tuple(input.shape)}.")
    held = _held(layer)
    factors = _factors(held)
    half = factors[0].dtype.itemsize < 4
    dtype = _output_dtype(input, factors[0].dtype if half else held[0].dtype)
    rows = input.reshape(-1, layer.in_features)
    output = held[0].product(rows, *factors, bias=layer.bias)
    return output.to(dtype).contiguous().view(*input.shape[:-1], layer.out_features)


def without_weight(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes the forward of ``nn.Linear`` pass W by where its factors are less work, or ``matrix_free`` says so."""

    @functools.wraps(forward)
    def wrapped(self: Any, input: Tensor) -> Tensor:
        return apply_linear(self, input) if _passes_by(self, input) else forward(self, input)

    return wrapped


def is_less_work(sizes: Sizes, vectors: int, chunks: int = 1) -> bool:
    """Whether one training step is fewer operations with V, σ and U applied to the vectors than with W built for them.

    Counted in multiplications, for N vectors and p×q blocks:

    - few reflectors, m on each side: ``6 N m (p + q)`` against ``6 p q m + 3 N p q``;
    - many, with ``A = m₁ p + m₂ q - (m₁² + m₂²) / 2``: ``7 N A`` against ``6 k A + 3 N p q``.

    Args:
        sizes: of a block.
        vectors: N, how many vectors meet W in one forward.
        chunks: blocks.

    Example:
        >>> from spectral_param.matrix_free import Sizes, is_less_work
        >>> is_less_work(Sizes(512, 512, 16, 16), vectors=10_000)
        True
        >>> is_less_work(Sizes(512, 512, 512, 512), 128), is_less_work(Sizes(512, 512, 512, 512), 2048)
        (True, False)
    """
    p, q, m1, m2 = sizes
    if is_low_rank(sizes):
        m = max(m1, m2)
        return 2 * vectors * m * (p + q) < p * q * (2 * m + vectors)
    area = m1 * p + m2 * q - (m1 * m1 + m2 * m2) // 2
    return 7 * vectors * area < 6 * sizes.k * area + 3 * vectors * p * q


def _passes_by(layer: nn.Module, input: Tensor) -> bool:
    held = _held(layer)
    if held is None or len(held) != 1 or not hasattr(held[0], "matrix_free") or held[0].matrix_free is False:
        return False
    if traced_or_transformed() or parametrize._cache_enabled or _is_listened_to(held):
        return False
    if held[0].matrix_free:
        return True
    if autocast_is_on(input.device.type) or input.shape[-1:] != (held[0].shape[1],):
        return False
    dtypes = {input.dtype, held[0].dtype, *(factor.dtype for factor in _factors(held))}
    if len(dtypes) > 1 or input.dtype.itemsize < 4 or hasattr(held.original0, "full_tensor"):
        return False
    return held[0].spares_work(input.numel() // input.shape[-1])


def _held(layer: nn.Module) -> Any:
    lists: Any = layer._modules.get("parametrizations")
    return None if lists is None else lists._modules.get("weight")


def _factors(held: Any) -> list[Tensor]:
    return [getattr(held, f"original{i}") for i in range(held.ntensors)]


def _is_listened_to(held: Any) -> bool:
    """Whether a hook waits for W."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in (held, held[0]))


def _output_dtype(input: Tensor, weight_dtype: torch.dtype) -> torch.dtype:
    """What ``nn.Linear`` would answer in, autocast or not, or its refusal."""
    device = input.device.type
    if autocast_is_on(device) and all(_lowered(dtype) for dtype in (input.dtype, weight_dtype)):
        return torch.get_autocast_dtype(device)
    if input.dtype != weight_dtype:
        raise TypeError(f"input: expected the dtype of the layer, {weight_dtype}, got {input.dtype}.")
    return weight_dtype


def _lowered(dtype: torch.dtype) -> bool:
    """Whether autocast takes tensors of this dtype for its own."""
    return dtype.is_floating_point and dtype != torch.float64
