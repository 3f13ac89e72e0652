"""How far the output of a network can move when its input does, from the singular values of its weights."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args, get_type_hints

from torch import Tensor, nn

from spectral_param.bounds.known_call import by_known_call
from spectral_param.bounds.lipschitz import activations, certified, normalisation, resampling, windows
from spectral_param.bounds.lipschitz.attention import self_attention
from spectral_param.bounds.lipschitz.moved import Moved, Shape
from spectral_param.bounds.lipschitz.traced import moved_through
from spectral_param.bounds.norms import operator_norm
from spectral_param.nn.residual import Residual
from spectral_param.nn.spectral_rnn import SpectralRNN
from spectral_param.nn.svd_linear import SVDLinear
from spectral_param.parametrization.lookup import check_module


def lipschitz_bound(module: nn.Module, *, around: Tensor | None = None, radius: float = math.inf) -> Tensor:
    """Bounds the Lipschitz constant of a network: ‖f(x) - f(x')‖ ≤ L ‖x - x'‖ for every x and x'.

    Norms are Euclidean, over all entries of a sample; f is the network in evaluation, whatever its mode. A stack has
    the product of its layers' constants, a block x + f(x) has 1 + L(f). Where a weight is registered its norm is
    ``max |σ|``, without a decomposition.

    A certificate must not be false, so a bound is given only where the ``forward`` that would run is one that is known:
    not for a class derived from a known one that has its own, for one put on the instance, or where hooks listen. Other
    classes are known by what ``torch.fx`` finds their ``forward`` to call, if all of that is known: sums, numbers times
    a value, what is put side by side, reshaped or cut, and known layers; torchvision's ResNets are. Norms of weights
    are rounded up by a few ε of their dtype, for what W is off by as it is built; the rounding of the rest of a
    forward is not counted.

    Known are ``nn.Linear`` and ``SVDLinear``; embeddings (over one-hot words); convolutions and their transposes, on
    images of every size (:mod:`spectral_param.functional.convolution.gram`: at most 1.05 times the norm on large ones);
    activations and softmax; pooling of every kind; batch, layer, group, instance and RMS normalisation; padding, pixel
    shuffle and upsampling; dropout, flattening; ``nn.Sequential`` and :class:`~spectral_param.nn.Residual`. Modules of
    your own join them as in the example; a class that is derived from one of them, with a ``forward`` of its own, needs
    a bound of its own.

    Some layers have no constant on all inputs, or a large one. With ``around`` and ``radius`` the bound is for inputs
    within that distance of an example: self-attention then has one, and normalisation the steepness that it has there.
    An example alone says what shapes there are, where a bound depends on them.

    Args:
        module: the network.
        around: an input, with a batch dimension; with several, the bound holds around each.
        radius: how far from it inputs are, over all entries of a sample.

    Returns:
        L, a scalar in float64 on the CPU, differentiable with respect to the weights; what ``around`` becomes on its
        way counts as a constant.

    Raises:
        TypeError: if no bound is known for a module in it, or for what a call of it does; if ``around`` is no tensor.
        ValueError: if there is none as a module is set up (batch normalisation without running statistics, an
            activation that jumps, or is steeper without end), or ``around`` or ``radius`` is needed for one; if
            ``radius`` is negative, or given without ``around``.

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
    check_module("module", module)
    if around is not None and not isinstance(around, Tensor):
        raise TypeError(f"around: expected a tensor, got {type(around).__name__}.")
    if not radius >= 0 or (radius < math.inf and around is None):
        raise ValueError(f"radius: expected at least 0, beside around=, got {radius}.")
    return _moved(module, Moved(centre=around, radius=radius)).by


def _by_its_forward(module: nn.Module, value: Moved) -> Moved:
    return moved_through(module, value, _moved)


_moved = by_known_call(_by_its_forward, "lipschitz_bound")


def _register(cls: Any, rule: Callable[..., Any] | None = None) -> Any:
    """Takes a rule for a class, as ``functools.singledispatch`` does: from a module to its constant."""
    if rule is None and (isinstance(cls, type) or get_args(cls)):
        return functools.partial(_register, cls)
    if rule is None:
        rule, cls = cls, next(iter(get_type_hints(cls).values()))
    _moved.register(cls, _on_values(rule))
    return rule


def _on_values(
    rule: Callable[..., Any], shape_after: Callable[[Any, Shape], Shape] | None = None
) -> Callable[..., Any]:
    """A rule for a module, or for a module and the value that it is given, as one from value to value."""
    takes_value = len(inspect.signature(rule).parameters) > 1

    def moved(module: nn.Module, value: Moved) -> Moved:
        found = rule(module, value) if takes_value else rule(module)
        if isinstance(found, Moved):
            return found
        shape = Shape.new() if shape_after is None else shape_after(module, value.shape)
        return value.through(module, found, shape)

    return moved


lipschitz_bound.register = _register  # type: ignore[attr-defined]


def _in_turn(module: nn.Sequential, value: Moved) -> Moved:
    for layer in module:
        value = _moved(layer, value)
    return value


def _residual(module: Residual, value: Moved) -> Moved:
    branch = _in_turn(module, value)
    for kept, made in ((value.shape.last, branch.shape.last), (value.shape.channels, branch.shape.channels)):
        if branch.shape.unknown is None and kept != made:
            raise ValueError(f"module: expected Residual to keep the shape of its input, got {module}.")
    centre = None
    if value.centre is not None and branch.centre is not None:
        if value.centre.shape != branch.centre.shape:
            raise ValueError(f"module: expected Residual to keep the shape of its input, got {module}.")
        centre = value.centre + branch.centre
    return replace(value, by=value.by + branch.by, centre=centre)


def _linear(module: nn.Linear) -> Tensor:
    return operator_norm(module)


def _svd_linear(module: SVDLinear) -> Tensor:
    return operator_norm(module, is_built=False)


def _embedding(module: nn.Embedding) -> Tensor:
    if module.max_norm is not None:
        raise ValueError("module: expected Embedding without max_norm, which changes its weight as it is called.")
    return operator_norm(module)


def _embedding_bag(module: nn.EmbeddingBag) -> Tensor:
    if module.mode == "sum" or module.max_norm is not None:
        raise ValueError(
            f"module: expected EmbeddingBag with mode='mean' or 'max' and without max_norm, got {module}: "
            "a sum is steeper the more words there are."
        )
    return operator_norm(module)


def _recurrent(module: nn.Module) -> Tensor:
    raise TypeError(
        f"module: no Lipschitz bound is known for {type(module).__name__} as a map of one input; simple recurrent "
        "networks have unrolled_lipschitz_bounds over their steps, cells have cell_lipschitz_bound."
    )


def _same(module: nn.Module, shape: Shape) -> Shape:
    return shape


def _after_linear(module: nn.Linear, shape: Shape) -> Shape:
    return shape.with_last(module.in_features, module.out_features)


_FAMILIES: tuple[tuple[dict[Any, Callable[..., Any]], Callable[[Any, Shape], Shape] | None], ...] = (
    (activations.RULES, _same),
    (normalisation.RULES, _same),
    ({kind: rule for kind, rule in windows.RULES.items() if kind in windows.WINDOWED}, windows.shape_after_windows),
    ({kind: rule for kind, rule in windows.RULES.items() if kind not in windows.WINDOWED}, None),
    (resampling.RULES, None),
    (certified.CONVOLUTIONS, None),
    (certified.SHAPE_KEEPING, _same),
    ({nn.Linear: _linear, SVDLinear: _svd_linear}, _after_linear),
    ({nn.RNNBase: _recurrent, nn.RNNCellBase: _recurrent, SpectralRNN: _recurrent}, None),
    ({nn.Embedding: _embedding, nn.EmbeddingBag: _embedding_bag}, None),
    ({nn.MultiheadAttention: self_attention, nn.Sequential: _in_turn, Residual: _residual}, None),
)
for _rules, _shape_after in _FAMILIES:
    for _cls, _rule in _rules.items():
        _moved.register(_cls, _on_values(_rule, _shape_after))
