"""Layers that apply V, σ and U to their input in turn, and do without W: when, and how."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.torch_state.modes import autocast_is_on, traced_or_transformed


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
        >>> from spectral_param.registration.injection.matrix_free import apply_linear
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
    output = output.to(dtype)
    # In memory of its own and no view, so that what follows may change it in place.
    output = output.clone() if len(rows) == 1 else output.contiguous()
    return output if input.dim() == 2 else torch.ops.aten._unsafe_view(output, (*input.shape[:-1], layer.out_features))


def without_weight(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes the forward of ``nn.Linear`` pass W by where its factors are less work, or ``matrix_free`` says so."""

    @functools.wraps(forward)
    def wrapped(self: Any, input: Tensor) -> Tensor:
        return apply_linear(self, input) if _passes_by(self, input) else forward(self, input)

    return wrapped


def thin_factors(module: nn.Module, tensor_name: str, like: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """σ, L and R of a square weight ``W = diag(σ) - L Rᵀ``, where a recurrence has less work with them than with W.

    Measured: so it is on a CPU from 64 features on, if L and R have a quarter of W's columns or fewer.

    Args:
        module: owner of the weight.
        tensor_name: its name.
        like: what W is to be applied to.

    Returns:
        (n,), (n, 2 m), (n, 2 m), or ``None`` where W is better built, or asked for.

    Example:
        >>> import torch
        >>> from spectral_param.registration.injection.matrix_free import thin_factors
        >>> from spectral_param.nn import SpectralRNN
        >>> rnn = SpectralRNN(1, 64, reflectors=8)
        >>> [tuple(t.shape) for t in thin_factors(rnn, "weight_hh_l0", torch.zeros(2, 64))]
        [(64,), (64, 16), (64, 16)]
    """
    held = _held(module, tensor_name)
    if not _may_pass_by(held):
        return None
    (n, _), counts = held[0].shape, held[0].reflectors
    if not 0 < min(counts) <= max(counts) < n:
        return None
    pays = like.device.type == "cpu" and n >= 64 and 8 * max(counts) <= n
    return held[0].thin_factors() if (pays or held[0].matrix_free) and _is_plain(held, like) else None


def _passes_by(layer: nn.Module, input: Tensor) -> bool:
    """Whether this linear layer does without W."""
    held = _held(layer)
    strided = type(input) in (Tensor, nn.Parameter) and input.layout is torch.strided and not input.is_nested
    if not strided or not _may_pass_by(held):
        return False
    if held[0].matrix_free:
        return True
    if input.shape[-1:] != (held[0].shape[1],) or not _is_plain(held, input):
        return False
    return held[0].spares_work(input.numel() // input.shape[-1])


def _may_pass_by(held: Any) -> bool:
    """Whether W is an SVD and nothing more, and nobody asks for it, keeps it, traces it or listens to it."""
    if held is None or len(held) != 1 or getattr(held[0], "matrix_free", False) is False:
        return False
    listened_to = any(module._forward_hooks or module._forward_pre_hooks for module in (held, held[0]))
    return not (listened_to or parametrize._cache_enabled or traced_or_transformed())


def _is_plain(held: Any, input: Tensor) -> bool:
    """Whether the product is one of float32 or float64 alone, without autocast or shards, so that W changes nothing."""
    dtypes = {input.dtype, held[0].dtype, *(factor.dtype for factor in _factors(held))}
    if len(dtypes) > 1 or input.dtype.itemsize < 4 or autocast_is_on(input.device.type):
        return False
    return not hasattr(held.original0, "full_tensor")


def _held(module: nn.Module, tensor_name: str = "weight") -> Any:
    lists: Any = module._modules.get("parametrizations")
    return None if lists is None else lists._modules.get(tensor_name)


def _factors(held: Any) -> list[Tensor]:
    return [getattr(held, f"original{i}") for i in range(held.ntensors)]


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
