"""Backward passes that autocast leaves alone, whatever surrounds the call of ``backward``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def without_autocast(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the backward of an autograd function in the precision of its tensors.

    Example:
        >>> import torch
        >>> from spectral_param.precision import without_autocast
        >>> square = without_autocast(lambda ctx, x: x @ x)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     square(None, torch.eye(2)).dtype
        torch.float32
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor | None) -> Any:
        device = next((g.device.type for g in grads if g is not None), "cpu")
        if not torch.is_autocast_enabled(device):
            return backward(ctx, *grads)
        with torch.autocast(device, enabled=False):
            return backward(ctx, *grads)

    return wrapped
