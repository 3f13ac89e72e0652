"""How far the output of a network can move when its input does, from the singular values of its weights."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from spectral_param.bounds.norms import operator_norm
from spectral_param.nn.residual import Residual
from spectral_param.spectrum.values import spectral_norm

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
    nn.CELU: 1.0,
    nn.Tanh: 1.0,
    nn.Hardtanh: 1.0,
    nn.Softplus: 1.0,
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


@functools.singledispatch
def lipschitz_bound(module: nn.Module) -> Tensor:
    """Bounds the Lipschitz constant of a network: ‖f(x) - f(x')‖ ≤ L ‖x - x'‖ for every x and x'.

    Norms are Euclidean, over all entries of a sample; f is the network in evaluation, whatever its mode. A stack has
    the product of its layers' constants, a block x + f(x) has 1 + L(f). Where a weight is registered its norm is
    max|σ|, without a decomposition.

    Known are ``nn.Linear`` and ``SVDLinear``; convolutions and their transposes; the usual activations and softmax; max
    and average pooling; batch normalisation; dropout, flattening; ``nn.Sequential`` and
    :class:`~spectral_param.nn.Residual`. Modules of your own join them as in the example.

    The σ of a convolution's kernel, read as (out, in·kh·kw), are not those of the convolution. Its bound is max|σ|·√r
    with r the number of windows that a pixel can lie in, ``kh·kw`` at stride 1: too large by √r at most, and exact
    where windows do not overlap, as with 1×1 kernels. A transposed convolution counts as with stride 1, and groups as
    one kernel, unless it is registered with ``chunks=groups``.

    Args:
        module: the network.

    Returns:
        L, a scalar in float64 on the CPU, differentiable with respect to the weights.

    Raises:
        TypeError: if no bound is known for a module in it.
        ValueError: if a convolution pads with anything but zeros, batch normalisation keeps no running statistics, or
            adaptive pooling leaves more than one entry.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import Fixed
        >>> from spectral_param.bounds import lipschitz_bound
        >>> from spectral_param.nn import Residual, SVDLinear
        >>> block = Residual(SVDLinear(8, 8, sigma=Fixed(0.5)), nn.ReLU())
        >>> lipschitz_bound(nn.Sequential(block, nn.Tanh(), SVDLinear(8, 2, sigma=Fixed(2.0)))).item()
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


# ---------------------------------------------------------------------------------------------- convolution and pooling


@lipschitz_bound.register
def _convolution(module: _ConvNd) -> Tensor:
    if module.padding_mode != "zeros":
        raise ValueError(f"module: expected {type(module).__name__} to pad with zeros, got {module.padding_mode!r}.")
    norm = spectral_norm(module).to("cpu", torch.float64)
    # Registered with chunks=groups, each group convolves channels of its own.
    whole = norm.amax() if norm.dim() and len(norm) == module.groups else torch.linalg.vector_norm(norm)
    # A registered transpose is read by its outputs, a plain one by its inputs; √(kh·kw) holds for both.
    stride = tuple(1 for _ in module.stride) if module.transposed else module.stride
    return whole * math.sqrt(_windows(module.kernel_size, stride, module.dilation))


def _pooling(module: nn.Module) -> Tensor:
    dimensions = _POOLED_DIMENSIONS[type(module)]
    kernel, stride, dilation = (
        _each(getattr(module, name, 1), dimensions) for name in ("kernel_size", "stride", "dilation")
    )
    scale = math.prod(kernel) / (getattr(module, "divisor_override", None) or math.prod(kernel))
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


@lipschitz_bound.register
def _batch_norm(module: _BatchNorm) -> Tensor:
    if module.running_var is None:
        raise ValueError(f"module: expected running statistics in {type(module).__name__}, got none.")
    scale = (module.running_var.to("cpu", torch.float64) + module.eps).rsqrt()
    if module.affine:
        scale = scale * module.weight.to("cpu", torch.float64).abs()
    return scale.amax()


@lipschitz_bound.register
def _leaky_relu(module: nn.LeakyReLU) -> Tensor:
    return torch.tensor(max(1.0, abs(module.negative_slope)), dtype=torch.float64)


@lipschitz_bound.register
def _elu(module: nn.ELU) -> Tensor:
    return torch.tensor(max(1.0, abs(module.alpha)), dtype=torch.float64)


@lipschitz_bound.register
def _prelu(module: nn.PReLU) -> Tensor:
    return module.weight.to("cpu", torch.float64).abs().amax().clamp_min(1.0)


def _constant(module: nn.Module) -> Tensor:
    known = next(value for cls, value in _CONSTANTS.items() if isinstance(module, cls))
    return torch.tensor(known, dtype=torch.float64)


for _cls in _CONSTANTS:
    lipschitz_bound.register(_cls, _constant)
for _cls in _POOLED_DIMENSIONS:
    lipschitz_bound.register(_cls, _pooling)
