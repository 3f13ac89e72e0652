"""Levels that bound σ: one number for all of them, or a tensor with one for each."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.torch_state.modes import has_numbers

Level = float | Tensor
"""A number, or a tensor (k,) or (chunks, k)."""


def checked(name: str, level: Level) -> Level:
    """Checks a level and makes it a float, or a tensor of its own in float32 or float64. NumPy's numbers are numbers.

    Raises:
        TypeError: if it is neither a number nor a floating tensor.
        ValueError: if it is not finite, or has more than two dimensions.

    Example:
        >>> from spectral_param.sigma.level import checked
        >>> checked("radius", 1)
        1.0
    """
    if isinstance(level, Tensor) and level.dim() > 0:
        if not level.dtype.is_floating_point:
            raise TypeError(f"{name}: expected a number or a floating tensor, got {level.dtype}.")
        if level.dim() > 2:
            raise ValueError(f"{name}: expected a number, or a tensor (k,) or (chunks, k), got {tuple(level.shape)}.")
        level = level.detach().to(torch.promote_types(level.dtype, torch.float32), copy=True)
        if not everywhere(torch.isfinite(level)):
            raise ValueError(f"{name}: expected finite numbers, got {level}.")
        return level
    return finite(name, level, "a number or a floating tensor")


def number(name: str, value: Any, expected: str = "a number") -> float:
    """Makes a float of a number, NumPy's among them, or of a tensor or an array without dimensions that holds one.

    Raises:
        TypeError: if it is something else; a bool, too.

    Example:
        >>> from spectral_param.sigma.level import number
        >>> number("max", "1")
        Traceback (most recent call last):
        TypeError: max: expected a number, got str.
    """
    is_one = value.numel() == 1 if isinstance(value, Tensor) else getattr(value, "shape", None) == ()
    if is_one and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}.")
    return float(value)


def finite(name: str, value: Any, expected: str = "a number") -> float:
    """The same of a number that is neither infinite nor NaN.

    Raises:
        TypeError: as :func:`number`.
        ValueError: if it is not finite.

    Example:
        >>> from spectral_param.sigma.level import finite
        >>> finite("center", float("nan"))
        Traceback (most recent call last):
        ValueError: center: expected a finite number, got nan.
    """
    level = number(name, value, expected)
    if not math.isfinite(level):
        raise ValueError(f"{name}: expected a finite number, got {level}.")
    return level


def everywhere(condition: bool | Tensor) -> bool:
    """Whether a condition on levels holds for every σ; true on the meta device, where nothing is known.

    Example:
        >>> import torch
        >>> from spectral_param.sigma.level import everywhere
        >>> everywhere(torch.tensor([1.0, -1.0]) > 0)
        False
    """
    if isinstance(condition, Tensor):
        return not has_numbers(condition) or bool(condition.all())
    return condition


def register_levels(module: nn.Module, **levels: Level) -> None:
    """Keeps levels as attributes, those that are tensors as buffers, so that they move and are saved with the module.

    Example:
        >>> import torch
        >>> from spectral_param.sigma.level import register_levels
        >>> module = torch.nn.Module()
        >>> register_levels(module, low=0.0, high=torch.ones(2))
        >>> module.low, list(module.state_dict())
        (0.0, ['high'])
    """
    for name, level in levels.items():
        if isinstance(level, Tensor):
            module.register_buffer(name, level)
        else:
            setattr(module, name, level)


def like(level: Level, tensor: Tensor) -> Level:
    """The level in the dtype of a tensor, on its device, and over its device mesh where it is a ``DTensor``.

    Example:
        >>> import torch
        >>> from spectral_param.sigma.level import like
        >>> like(torch.ones(2), torch.zeros(2, dtype=torch.float64)).dtype
        torch.float64
    """
    if not isinstance(level, Tensor):
        return level
    level = level.to(tensor.device, tensor.dtype)
    if hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import DTensor, Replicate

        mesh = tensor.device_mesh
        return DTensor.from_local(level, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return level


def describe(level: Level) -> str:
    """A level in few words.

    Example:
        >>> import torch
        >>> from spectral_param.sigma.level import describe
        >>> describe(0.1), describe(torch.tensor([1.0, 0.25, 2.0]))
        ('0.1', '[3 values, 0.25 to 2]')
    """
    if not isinstance(level, Tensor):
        return str(level)
    span = "" if not has_numbers(level) else f", {level.min():.4g} to {level.max():.4g}"
    return f"[{level.numel()} values{span}]"
