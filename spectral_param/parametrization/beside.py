"""Layers on a frozen base: its own product with what comes in, and the change beside it, W never summed up."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional.turned import changed_product, turned_product
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.torch_state.modes import traced_or_transformed
from spectral_param.torch_state.precision import full_precision

_POINTWISE = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}  # by the dimensions of a kernel


def linear_beside(p: TurnedParametrization, x: Tensor, bias: Tensor | None, *, transposed: bool = False) -> Tensor:
    """``x Wᵀ + b`` for vectors x, (…, q) → (…, p); for a weight that stands as (in, out) ``x W + b``.

    Args:
        p: of W.
        x: the vectors.
        bias: b, or ``None``.
        transposed: whether W stands as (in, out).

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization
        >>> from spectral_param.parametrization.beside import linear_beside
        >>> layer, x = torch.nn.Linear(6, 4), torch.randn(2, 6)
        >>> before = layer(x)
        >>> p = register_svd_parametrization(layer, base="frozen", reflectors=2).parametrizations.weight[0]
        >>> torch.allclose(linear_beside(p, x, layer.bias), before, atol=1e-5)
        True
    """
    base = p.own_base
    if p.is_off:
        return F.linear(x, base.mT if transposed else base, bias)
    if p.is_quantized:
        with full_precision(x.device.type):
            turns = p.turns(p.factors)
        y = turned_product(x, lambda x: F.linear(x, base), *turns)
        return y if bias is None else y + bias.to(y.dtype)
    left, right = p.change_beside(base)
    if transposed:
        base, left, right = base.mT, right, left
    return changed_product(x, base, left, right, bias, plainly=traced_or_transformed())


def convolve_beside(
    p: TurnedParametrization, x: Tensor, convolve: Callable[..., Tensor], bias: Tensor | None
) -> Tensor:
    """The convolution of x by W: beside that by W₀ one by s kernels, and one of 1×1 that spreads what comes of them.

    Args:
        p: of W.
        x: what ``convolve`` takes.
        convolve: of x, a kernel and a bias or ``None``, in as many groups as there are chunks, or in one.
        bias: (out,), or ``None``.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization
        >>> from spectral_param.parametrization.beside import convolve_beside
        >>> layer, x = torch.nn.Conv1d(6, 4, 3), torch.randn(2, 6, 9)
        >>> before = layer(x)
        >>> p = register_svd_parametrization(layer, base="frozen", reflectors=2).parametrizations.weight[0]
        >>> torch.allclose(convolve_beside(p, x, layer._conv_forward, layer.bias), before, atol=1e-5)
        True
    """
    base = p.own_base
    y = convolve(x, base, bias)
    if p.is_off:
        return y
    left, right = p.change_beside(base)  # (…, p, s), (…, q, s)
    kernels = right.mT.reshape(-1, *base.shape[1:]).to(base.dtype)  # (chunks · s, in / groups, …)
    spread = left.reshape(base.shape[0], -1, *(1 for _ in base.shape[2:])).to(base.dtype)  # (out, s, 1, …)
    return y + _POINTWISE[base.dim()](convolve(x, kernels, None), spread, groups=p.chunks)
