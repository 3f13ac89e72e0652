"""Operations in a graph that :mod:`spectral_param.bounds.lipschitz.traced` knows, and what moves in their arguments."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from spectral_param.bounds.lipschitz.moved import Moved
from spectral_param.nn.residual import Residual
from spectral_param.torch_state.private import ConvNd, NormBase

ADD = {operator.add, operator.sub, torch.add, torch.sub, "add", "sub"}
BY_SIGN = {operator.add, operator.sub, operator.mul, operator.truediv}
ADD_IN_PLACE = {operator.iadd, operator.isub, "add_", "sub_"}
SCALE = {operator.mul, operator.truediv, operator.neg, torch.mul, torch.div, torch.neg, "mul", "div", "neg"}
REARRANGE = {
    torch.flatten, torch.reshape, torch.permute, torch.transpose, torch.squeeze, torch.unsqueeze, torch.movedim,
    "flatten", "reshape", "view", "permute", "transpose", "squeeze", "unsqueeze", "movedim", "contiguous", "clone", "t",
}  # fmt: skip
SPLIT = {torch.chunk, torch.split, torch.unbind, "chunk", "split", "unbind"}
JOIN = {torch.cat, torch.concat, torch.stack}
MEAN = {torch.mean, "mean"}
EXPAND = {"expand", "expand_as"}
READ = {"size", "dim", "numel", "ndimension"}
ATTRIBUTES = {"shape", "ndim", "dtype", "device"}
LAYERS: dict[Any, type[nn.Module]] = {
    torch.relu: nn.ReLU, F.relu: nn.ReLU, "relu": nn.ReLU, F.relu6: nn.ReLU6, F.leaky_relu: nn.LeakyReLU, F.elu: nn.ELU,
    torch.tanh: nn.Tanh, "tanh": nn.Tanh, torch.sigmoid: nn.Sigmoid, F.sigmoid: nn.Sigmoid, "sigmoid": nn.Sigmoid,
    F.gelu: nn.GELU, F.silu: nn.SiLU, F.mish: nn.Mish, F.softplus: nn.Softplus, F.hardswish: nn.Hardswish,
    F.adaptive_avg_pool2d: nn.AdaptiveAvgPool2d, F.avg_pool2d: nn.AvgPool2d, F.max_pool2d: nn.MaxPool2d,
    F.adaptive_avg_pool1d: nn.AdaptiveAvgPool1d, F.avg_pool1d: nn.AvgPool1d, F.max_pool1d: nn.MaxPool1d,
    F.pixel_shuffle: nn.PixelShuffle, F.pixel_unshuffle: nn.PixelUnshuffle, F.interpolate: nn.Upsample,
}  # fmt: skip


class NotKnown:
    """A number that follows from shapes that are not known, or an output without a bound."""


class ShapesNotKnown(NotKnown):
    """The first of them: fine to compare and to reshape by."""


MAKES_ANEW = (
    nn.Linear,
    ConvNd,
    NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
)
"""Layers whose output is no view of their input."""


def may_write_to_input(module: nn.Module) -> bool:
    """Whether a layer may change what it is given.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds.lipschitz.operations import may_write_to_input
        >>> act = nn.ReLU(inplace=True)
        >>> may_write_to_input(nn.Sequential(act)), may_write_to_input(nn.Sequential(nn.Linear(2, 2), act))
        (True, False)
    """
    if type(module) is nn.Sequential:
        for layer in module:
            if isinstance(layer, MAKES_ANEW) or may_write_to_input(layer):
                return not isinstance(layer, MAKES_ANEW)
        return False
    if isinstance(module, Residual):
        return False
    return any(getattr(part, "inplace", False) for part in module.modules())


def moving_in(values: Any) -> list[Moved]:
    """What moves in arguments, however they are nested.

    Raises:
        TypeError: if the weights of an attention are among them.
    """
    found: list[Moved] = []
    if isinstance(values, Moved):
        found.append(values)
    elif isinstance(values, (tuple, list)):
        for value in values:
            found += moving_in(value)
    elif isinstance(values, dict):
        for value in values.values():
            found += moving_in(value)
    elif isinstance(values, NotKnown) and not isinstance(values, ShapesNotKnown):
        raise TypeError("module: no Lipschitz bound is known for the weights of an attention, which are read here.")
    return found


def holds_unknown(values: Any) -> bool:
    """Whether arguments are no constants."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, (tuple, list)):
        return any(map(holds_unknown, values))
    return isinstance(values, (NotKnown, Moved))


def is_basic(index: Any) -> bool:
    """Whether an index picks each entry once at most."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice, ShapesNotKnown)) for part in parts)


def constant(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """What follows from constants alone."""
    if holds_unknown((args, kwargs)):
        return ShapesNotKnown()
    return concretely(node, args, kwargs)


def concretely(node: fx.Node, args: Any, kwargs: Any) -> Any:
    """Carried out, with centres in the place of what moves."""
    args, kwargs = centres(args), centres(kwargs)
    with torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def centres(values: Any) -> Any:
    """Arguments with centres in the place of what moves."""
    if isinstance(values, Moved):
        return None if values.centre is None else values.centre.clone()  # some work in place
    if isinstance(values, dict):
        return {name: centres(value) for name, value in values.items()}
    if isinstance(values, (tuple, list)):
        return type(values)(map(centres, values))
    return values
