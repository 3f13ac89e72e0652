"""How far the output of a network can move when its input does, from the singular values of its weights."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from spectral_param.bounds.known_call import by_known_call
from spectral_param.bounds.norms import operator_norm, operator_norms
from spectral_param.nn.residual import Residual
from spectral_param.nn.svd_linear import SVDLinear
from spectral_param.parametrization.blocks import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS

# The greatest slope, rounded up, or for softmax the greatest norm of its Jacobian.
_CONSTANTS: dict[type[nn.Module], float] = {
    nn.Identity: 1.0,
    nn.Flatten: 1.0,
    nn.Unflatten: 1.0,
    nn.Dropout: 1.0,
    nn.Dropout1d: 1.0,
    nn.Dropout2d: 1.0,
    nn.Dropout3d: 1.0,
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.Tanh: 1.0,
    nn.Hardtanh: 1.0,
    nn.Softsign: 1.0,
    nn.LogSigmoid: 1.0,
    nn.Sigmoid: 0.25,
    nn.Softmax: 0.5,
    nn.Mish: 1.09,
    nn.SiLU: 1.1,
    nn.GELU: 1.13,
    nn.SELU: 1.7581,
}

_POOLED_DIMENSIONS: dict[type[nn.Module], int] = {
    nn.MaxPool1d: 1,
    nn.MaxPool2d: 2,
    nn.MaxPool3d: 3,
    nn.AvgPool1d: 1,
    nn.AvgPool2d: 2,
    nn.AvgPool3d: 3,
}


@by_known_call
def lipschitz_bound(module: nn.Module) -> Tensor:
    """Bounds the Lipschitz constant of a network: ‖f(x) - f(x')‖ ≤ L ‖x - x'‖ for every x and x'.

    Norms are Euclidean, over all entries of a sample; f is the network in evaluation, whatever its mode. A stack has
    the product of its layers' constants, a block x + f(x) has 1 + L(f). Where a weight is registered its norm is
    max|σ|, without a decomposition.

    A certificate must not be false, so a bound is given only where the ``forward`` that would run is one that is known:
    not for a derived class that has its own, for one put on the instance, or where hooks listen. Norms of weights are
    rounded up by a few ε of their dtype, for what W is off by as it is built; the rounding of the rest of a forward is
    not counted.

    Known are ``nn.Linear`` and ``SVDLinear``; convolutions and their transposes; the usual activations and softmax; max
    and average pooling; batch normalisation; dropout, flattening; ``nn.Sequential`` and
    :class:`~spectral_param.nn.Residual`. Modules of your own join them as in the example;
    a class that is derived from one of them, with a ``forward`` of its own, needs a bound of its own.

    The σ of a convolution's kernel, read as (out, in·kh·kw), are not those of the convolution. Its bound is max|σ|·√r
    with r the number of windows that a pixel can lie in, ``kh·kw`` at stride 1: too large by √r at most, and exact
    where windows do not overlap, as with 1×1 kernels. A transposed convolution counts as with stride 1, and groups as
    one kernel, unless it is registered with ``chunks=groups``.

    Args:
        module: the network.

    Returns:
        L, a scalar in float64 on the CPU, differentiable with respect to the weights.

    Raises:
        TypeError: if no bound is known for a module in it, or for what a call of it does.
        ValueError: if a convolution pads with anything but zeros, batch normalisation keeps no running statistics,
            adaptive pooling leaves more than one entry, or an activation is steeper without end.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import Fixed
        >>> from spectral_param.bounds import lipschitz_bound
        >>> from spectral_param.nn import Residual, SVDLinear
        >>> block = Residual(SVDLinear(8, 8, sigma=Fixed(0.5)), nn.ReLU())
        >>> round(lipschitz_bound(nn.Sequential(block, nn.Tanh(), SVDLinear(8, 2, sigma=Fixed(2.0)))).item(), 4)
        3.0
        >>> class Halve(nn.Module):
        ...     def forward(self, input):
        ...         return input / 2
        >>> @lipschitz_bound.register
        ... def _(module: Halve):
        ...     return torch.tensor(0.5)
        >>> lipschitz_bound(nn.Sequential(Halve(), Halve())).item()
        0.25
    """
    raise TypeError(
        f"module: no Lipschitz bound is known for {type(module).__name__}; give it one with lipschitz_bound.register."
    )


@lipschitz_bound.register
def _sequential(module: nn.Sequential) -> Tensor:
    product = torch.ones((), dtype=torch.float64)
    for layer in module:
        product = product * lipschitz_bound(layer)
    return product


@lipschitz_bound.register
def _residual(module: Residual) -> Tensor:
    return 1 + _sequential(module)


@lipschitz_bound.register
def _linear(module: nn.Linear) -> Tensor:
    return operator_norm(module)


@lipschitz_bound.register
def _svd_linear(module: SVDLinear) -> Tensor:
    return operator_norm(module, is_built=False)


# ---------------------------------------------------------------------------------------------- convolution and pooling


def _convolution(module: _ConvNd) -> Tensor:
    if module.padding_mode != "zeros":
        raise ValueError(f"module: expected {type(module).__name__} to pad with zeros, got {module.padding_mode!r}.")
    norm = operator_norms(module)
    # Registered with chunks=groups, each group convolves channels of its own.
    whole = norm.amax() if norm.dim() and len(norm) == module.groups else torch.linalg.vector_norm(norm)
    # A registered transpose is read by its outputs, a plain one by its inputs; √(kh·kw) holds for both.
    stride = tuple(1 for _ in module.stride) if module.transposed else module.stride
    return whole * math.sqrt(_windows(module.kernel_size, stride, module.dilation))


def _pooling(dimensions: int, module: nn.Module) -> Tensor:
    kernel, stride, dilation = (
        _each(getattr(module, name, 1), dimensions) for name in ("kernel_size", "stride", "dilation")
    )
    scale = math.prod(kernel) / abs(getattr(module, "divisor_override", None) or math.prod(kernel))
    return torch.tensor(scale * math.sqrt(_windows(kernel, stride, dilation)), dtype=torch.float64)


def _windows(kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> int:
    """In how many windows one pixel can lie."""
    sides = zip(kernel, stride, dilation, strict=True)
    return math.prod(math.ceil(k * math.gcd(s, d) / s) for k, s, d in sides)


def _each(size: int | tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    return (size,) * dimensions if isinstance(size, int) else tuple(size)


@lipschitz_bound.register(nn.AdaptiveAvgPool1d)
@lipschitz_bound.register(nn.AdaptiveAvgPool2d)
@lipschitz_bound.register(nn.AdaptiveAvgPool3d)
def _mean(module: nn.Module) -> Tensor:
    if module.output_size not in (1, (1,), (1, 1), (1, 1, 1)):
        raise ValueError(f"module: expected {type(module).__name__} to leave one entry, got {module.output_size}.")
    return torch.ones((), dtype=torch.float64)


# ------------------------------------------------------------------------------------------ normalisation, activations


@lipschitz_bound.register(nn.BatchNorm1d)
@lipschitz_bound.register(nn.BatchNorm2d)
@lipschitz_bound.register(nn.BatchNorm3d)
@lipschitz_bound.register(nn.SyncBatchNorm)
def _batch_norm(module: _BatchNorm) -> Tensor:
    if module.running_mean is None or module.running_var is None:
        raise ValueError(f"module: expected running statistics in {type(module).__name__}, got none.")
    scale = (module.running_var.to("cpu", torch.float64) + module.eps).rsqrt()
    if module.weight is not None:
        scale = scale * module.weight.to("cpu", torch.float64).abs()
    return scale.amax()


def _steeper_than_one(slope: float | Tensor) -> Tensor:
    return torch.as_tensor(slope, dtype=torch.float64, device="cpu").abs().amax().clamp_min(1.0)


@lipschitz_bound.register
def _leaky_relu(module: nn.LeakyReLU) -> Tensor:
    return _steeper_than_one(module.negative_slope)


@lipschitz_bound.register
def _elu(module: nn.ELU) -> Tensor:
    return _steeper_than_one(module.alpha)


@lipschitz_bound.register
def _prelu(module: nn.PReLU) -> Tensor:
    return _steeper_than_one(module.weight)


@lipschitz_bound.register
def _celu(module: nn.CELU) -> Tensor:
    if not module.alpha > 0:
        raise ValueError(f"module: expected CELU with an alpha above 0, got {module.alpha}.")
    return _steeper_than_one(1.0)


@lipschitz_bound.register
def _softplus(module: nn.Softplus) -> Tensor:
    if not module.threshold >= 20:
        raise ValueError(
            f"module: expected Softplus with a threshold of 20 or more, where its jump is lost in rounding, "
            f"got {module.threshold}."
        )
    return _steeper_than_one(1.0)


def _constant(known: float, module: nn.Module) -> Tensor:
    return torch.tensor(known, dtype=torch.float64)


for _cls, _known in _CONSTANTS.items():
    lipschitz_bound.register(_cls, functools.partial(_constant, _known))
for _cls, _dimensions in _POOLED_DIMENSIONS.items():
    lipschitz_bound.register(_cls, functools.partial(_pooling, _dimensions))
for _cls in (*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS):
    lipschitz_bound.register(_cls, _convolution)
