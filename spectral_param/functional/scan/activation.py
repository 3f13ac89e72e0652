"""The nonlinearities φ of a recurrent layer, in place, and their derivative from h = φ(z) alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

NONLINEARITIES = ("tanh", "relu", "leaky_relu")


def check_activation(nonlinearity: str, slope: float) -> None:
    """Raises ``ValueError`` for another word, or a slope that is negative or not finite.

    Example:
        >>> from spectral_param.functional.scan.activation import check_activation
        >>> check_activation("tanh", 0.0)
    """
    if nonlinearity not in NONLINEARITIES:
        raise ValueError(f"nonlinearity: expected one of {NONLINEARITIES}, got {nonlinearity!r}.")
    if not 0 <= slope < math.inf:
        raise ValueError(f"negative_slope: expected a finite number, at least 0, got {slope}.")


def number_of(nonlinearity: str) -> int:
    """What the compiled scan knows φ by.

    Example:
        >>> from spectral_param.functional.scan.activation import number_of
        >>> number_of("relu")
        1
    """
    return NONLINEARITIES.index(nonlinearity)


def activate(z: Tensor, nonlinearity: str, slope: float) -> Tensor:
    """φ(z).

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.activation import activate
        >>> activate(torch.tensor([-1.0, 1.0]), "leaky_relu", 0.1)
        tensor([-0.1000,  1.0000])
    """
    if nonlinearity == "tanh":
        return torch.tanh(z)
    return torch.relu(z) if nonlinearity == "relu" else F.leaky_relu(z, slope)


def activate_(z: Tensor, nonlinearity: str, slope: float) -> None:
    """φ(z) in place of z.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.activation import activate_
        >>> z = torch.tensor([-1.0, 1.0])
        >>> activate_(z, "relu", 0.0)
        >>> z
        tensor([0., 1.])
    """
    if nonlinearity == "tanh":
        z.tanh_()
    elif nonlinearity == "relu":
        z.relu_()
    else:
        F.leaky_relu_(z, slope)


def through_activation(grad: Tensor, h: Tensor, nonlinearity: str, slope: float, out: Tensor) -> None:
    """``out`` = grad φ'(z), from h = φ(z).

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.activation import through_activation
        >>> out = torch.empty(2)
        >>> through_activation(torch.ones(2), torch.tensor([0.0, 3.0]), "relu", 0.0, out)
        >>> out
        tensor([0., 1.])
    """
    aten = torch.ops.aten
    if nonlinearity == "tanh":
        aten.tanh_backward.grad_input(grad, h, grad_input=out)
    elif nonlinearity == "relu":
        aten.threshold_backward.grad_input(grad, h, 0, grad_input=out)
    else:
        aten.leaky_relu_backward.grad_input(grad, h, slope, True, grad_input=out)
