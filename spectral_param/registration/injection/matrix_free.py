"""Layers that apply V, σ and U to their input in turn, and do without W."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param.functional.ways import Thin, Way, spares_the_weight, way_to_apply, way_to_build
from spectral_param.functional.work import (
    SURELY_SPARE_NOT,
    spares_a_kept_weight,
    spares_a_recurrence,
    spares_the_sum,
)
from spectral_param.parametrization.beside import linear_beside
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.together import keeps, kept_thin_factors, running, weight_of
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.registration.injection.callers import refuse_onnx
from spectral_param.registration.injection.watch import handed_out, tell_of_writes
from spectral_param.registration.injection.weight_property import kept
from spectral_param.torch_state.modes import autocast_is_on, is_listened_to, is_seen_through
from spectral_param.torch_state.private import unsafe_view, weight_cache


def without_weight(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Makes the forward of ``nn.Linear`` pass W by where its factors are less work, or ``matrix_free`` says so."""

    @functools.wraps(forward)
    def wrapped(self: Any, input: Tensor) -> Tensor:
        compiled = torch.compiler.is_compiling()
        if not compiled and handed_out:
            tell_of_writes(self)
        p = SVDParametrization.alone_on(self)
        strided = type(input) in (Tensor, nn.Parameter) and input.layout is torch.strided and not input.is_nested
        if isinstance(p, TurnedParametrization):
            return (
                linear_beside(p, input, self.bias) if strided and passes_the_sum(p, input, -1) else forward(self, input)
            )
        if p is None or not strided or not input.dim() or is_seen_through():
            return forward(self, input)
        with_gradients = torch.is_grad_enabled()
        keeps = not (with_gradients or compiled or self.training or p.matrix_free)
        if keeps and (weight := _kept_weight(p, input)) is not None:
            return F.linear(input, weight, self.bias)
        if _somebody_wants_the_weight(p):
            return forward(self, input)
        if _is_kept(p):
            if (thin := _kept_thin_factors(p, input)) is not None:
                return _applied(self, p, input, p.dtype, thin, autocast=False)
            return F.linear(input, weight_of(p), self.bias)
        if with_gradients and not compiled:
            p.kept_weight.kept = None
        u, raw, v = parts = p.parts
        vectors, autocast = _vectors(p, input), autocast_is_on(input.device.type)
        way: Way | None = None
        if p.matrix_free:
            way = way_to_apply(*parts, vectors, transformed=False)
        elif p.matrix_free is None and input.shape[-1] == v.n and not autocast and _is_plain(p, raw, input):
            way = way_to_apply(*parts, vectors, transformed=False)
            way = way if spares_the_weight(way, *parts, vectors) else None
        if way is not None:
            return _applied(self, p, input, raw.dtype, way, autocast)
        weight = None if with_gradients or compiled else kept(p.parametrization_list)
        if weight is None:
            weight = p.forward(*p.factors, way=way_to_build(u, raw, v, transformed=False))
        return F.linear(input, weight, self.bias)

    return wrapped


def passes_the_sum(p: TurnedParametrization, x: Tensor, features: int, *, strides: int = 1) -> bool:
    """Whether a turned base is applied beside its change.

    Args:
        p: of the layer's weight.
        x: the input.
        features: which dimension of it meets W.
        strides: how many positions of the input each output stands for.
    """
    if p.matrix_free is False or not x.dim() or _is_kept(p) or _somebody_wants_the_weight(p):
        return False
    if p.matrix_free or p.is_off or p.is_quantized:
        return True
    return spares_the_sum(p.sizes, p.rank, x.numel() // max(x.shape[features], 1) // strides)


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
    p = SVDParametrization.alone_on(layer)
    assert p is not None
    refuse_onnx()
    parts = p.parts
    way = way_to_apply(*parts, _vectors(p, input), transformed=is_seen_through())
    return _applied(layer, p, input, parts[1].dtype, way, autocast_is_on(input.device.type))


def thin_factors(module: nn.Module, tensor_name: str, like: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """σ, L and R of a square weight ``W = diag(σ) - L Rᵀ``, where a recurrence has less work with them than with W.

    Args:
        module: owner of the weight.
        tensor_name: its name.
        like: what W is to be applied to.

    Returns:
        (n,), (n, 2 m), (n, 2 m), or ``None`` where W is better built, or asked for.

    Example:
        >>> import torch
        >>> from spectral_param.nn import SpectralRNN
        >>> from spectral_param.registration.injection.matrix_free import thin_factors
        >>> rnn = SpectralRNN(1, 64, reflectors=8)
        >>> [tuple(t.shape) for t in thin_factors(rnn, "weight_hh_l0", torch.zeros(2, 64))]
        [(64,), (64, 16), (64, 16)]
    """
    p = SVDParametrization.alone_on(module, tensor_name)
    if (
        p is None
        or isinstance(p, TurnedParametrization)
        or p.matrix_free is False
        or is_seen_through()
        or _is_kept(p)
        or _somebody_wants_the_weight(p)
    ):
        return None
    sizes = p.sizes
    if not 0 < min(sizes.m1, sizes.m2) <= max(sizes.m1, sizes.m2) < sizes.k:
        return None
    pays = p.matrix_free or spares_a_recurrence(sizes, like.device.type)
    plain = not autocast_is_on(like.device.type) and _is_plain(p, p.factors[0], like)
    return p.thin_factors() if pays and plain else None


def _applied(
    layer: nn.Linear,
    p: SVDParametrization,
    input: Tensor,
    factors: torch.dtype,
    way: Way | Thin,
    autocast: bool,
) -> Tensor:
    """The layer by the factors of its weight, ``factors`` being their dtype, in a way or with thin ones made before."""
    if input.dim() == 0 or input.shape[-1] != layer.in_features:
        raise ValueError(f"input: expected (…, {layer.in_features}), got {tuple(input.shape)}.")
    dtype = factors if factors.itemsize < 4 else p.dtype
    if autocast and all(given.is_floating_point and given != torch.float64 for given in (input.dtype, dtype)):
        dtype = torch.get_autocast_dtype(input.device.type)
    elif input.dtype != dtype:
        raise TypeError(f"input: expected the dtype of the layer, {dtype}, got {input.dtype}.")
    rows = input if input.dim() == 2 else input.reshape(-1, layer.in_features)
    output = p.product(rows, way, layer.bias).to(dtype)
    # In memory of its own and no view, so that what follows may change it in place.
    alone = not torch.compiler.is_exporting() and rows.shape[0] == 1
    output = output.clone() if alone else output.contiguous()
    return output if input.dim() == 2 else unsafe_view(output, (*input.shape[:-1], layer.out_features))


def _kept_weight(p: SVDParametrization, input: Tensor) -> Tensor | None:
    """W in evaluation, where it is kept from the first forward on, for not too many vectors."""
    if (many := input.numel()) > SURELY_SPARE_NOT and spares_a_kept_weight(p.sizes, many // max(input.shape[-1], 1)):
        return None
    return kept(p.parametrization_list)


def _is_kept(p: SVDParametrization) -> bool:
    """Whether ``together`` keeps what it has made of the weight."""
    return not torch.compiler.is_compiling() and bool(running.store) and keeps(p)


def _kept_thin_factors(p: SVDParametrization, input: Tensor) -> Thin | None:
    """What ``together`` has made of a weight in place of W, where that is less work and allowed."""
    if p.matrix_free is False or input.shape[-1] != p.shape[1] or autocast_is_on(input.device.type):
        return None
    return kept_thin_factors(p, _vectors(p, input)) if _is_plain(p, p.factors[0], input) else None


def _vectors(p: SVDParametrization, input: Tensor) -> int:
    """How many meet W. A batch whose size is not known is taken for a large one."""
    if torch.compiler.is_exporting():
        return 4 * max(*p.reflectors, 1)
    return input.shape[:-1].numel() if input.dim() else 1


def _somebody_wants_the_weight(p: SVDParametrization) -> bool:
    """Whether W is kept by torch, or its making is listened to, also by a forward put in the place of torch's."""
    held = p.parametrization_list
    return weight_cache() is not None or is_listened_to(held, p) or _has_own_forward(held, p)


def _has_own_forward(*modules: nn.Module) -> bool:
    """Whether a forward was put in the place of torch's or ours, but for one that says that it can do without W."""
    own = (module.__dict__.get("forward") for module in modules)
    return any(forward is not None and getattr(forward, "wants_the_weight", True) for forward in own)


def _is_plain(p: SVDParametrization, factor: Tensor, input: Tensor) -> bool:
    """Whether the product is one of float32 or float64 alone, without shards, as it is with W."""
    same = input.dtype == p.dtype == factor.dtype and input.dtype.itemsize >= 4
    return same and not hasattr(p.factors[0], "full_tensor")
