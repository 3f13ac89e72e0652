"""Activations: the greatest slope, rounded up, or for softmax the greatest norm of its Jacobian."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CONSTANTS: dict[type[nn.Module], float] = {
    nn.Identity: 1.0,
    nn.Dropout: 1.0,
    nn.Dropout1d: 1.0,
    nn.Dropout2d: 1.0,
    nn.Dropout3d: 1.0,
    nn.AlphaDropout: 1.0,
    nn.FeatureAlphaDropout: 1.0,
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.Tanh: 1.0,
    nn.Hardtanh: 1.0,
    nn.Hardsigmoid: 0.1667,
    nn.Hardswish: 1.5,
    nn.Softshrink: 1.0,
    nn.Softsign: 1.0,
    nn.Tanhshrink: 1.0,
    nn.LogSigmoid: 1.0,
    nn.Sigmoid: 0.25,
    nn.Softmax: 0.5,
    nn.Softmax2d: 0.5,
    nn.Softmin: 0.5,
    nn.Mish: 1.09,
    nn.SiLU: 1.1,
    nn.GELU: 1.13,
    nn.SELU: 1.7581,
}


def _constant(known: float, module: nn.Module) -> Tensor:
    return torch.tensor(known, dtype=torch.float64)


def _steeper_than_one(slope: float | Tensor) -> Tensor:
    return torch.as_tensor(slope, dtype=torch.float64, device="cpu").abs().amax().clamp_min(1.0)


def _celu(module: nn.CELU) -> Tensor:
    if not module.alpha > 0:
        raise ValueError(f"module: expected CELU with an alpha above 0, got {module.alpha}.")
    return _steeper_than_one(1.0)


def _softplus(module: nn.Softplus) -> Tensor:
    if not module.threshold >= 20:
        raise ValueError(
            f"module: expected Softplus with a threshold of 20 or more, where its jump is lost in rounding, "
            f"got {module.threshold}."
        )
    return _steeper_than_one(1.0)


def _jumps(module: nn.Module) -> Tensor:
    raise ValueError(f"module: expected an activation without a jump, got {module}, which has no Lipschitz constant.")


def _grows(module: nn.GLU) -> Tensor:
    raise ValueError(
        "module: expected no GLU, whose product of two halves is steeper without end, the larger its input is."
    )


RULES: dict[type[nn.Module], Callable[[Any], Tensor]] = {
    nn.LeakyReLU: lambda module: _steeper_than_one(module.negative_slope),
    nn.ELU: lambda module: _steeper_than_one(module.alpha),
    nn.PReLU: lambda module: _steeper_than_one(module.weight),
    nn.RReLU: lambda module: _steeper_than_one((module.lower + module.upper) / 2),
    nn.CELU: _celu,
    nn.Softplus: _softplus,
    nn.Hardshrink: _jumps,
    nn.Threshold: _jumps,
    nn.GLU: _grows,
}
RULES |= {kind: functools.partial(_constant, constant) for kind, constant in CONSTANTS.items()}
