"""Autocast: whether it is on, and backward passes that it leaves alone, whatever surrounds ``backward()``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def autocast_is_on(device: str) -> bool:
    """Whether autocast is on for a device type; the meta device has none.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.modes import autocast_is_on
        >>> autocast_is_on("meta"), autocast_is_on("cpu")
        (False, False)
    """
    return device != "meta" and torch.is_autocast_enabled(device)


def traced_or_transformed() -> bool:
    """Whether something other than eager autograd looks on: a compiler, a tracer, a transform, forward-mode AD."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the backward of an autograd function in the precision of its tensors.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.modes import without_autocast
        >>> square = without_autocast(lambda ctx, x: x @ x)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     square(None, torch.eye(2)).dtype
        torch.float32
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor | None) -> Any:
        device = next((g.device.type for g in grads if g is not None), "cpu")
        if not autocast_is_on(device):
            return backward(ctx, *grads)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *grads)

    return wrapped
