"""Who looks on while something is computed: autocast, compilers, tracers, transforms, dispatch modes, hooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.torch_state.private import (
    dispatch_modes,
    forward_mode_is_on,
    has_any_global_hook,
    is_fake,
    tracing_state,
    transforms_are_active,
)


def autocast_is_on(device: str) -> bool:
    """Whether autocast is on for a device type; the meta device has none.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.modes import autocast_is_on
        >>> autocast_is_on("meta"), autocast_is_on("cpu")
        (False, False)
    """
    return device != "meta" and torch.is_autocast_enabled(device)


def is_lowered(device: str) -> bool:
    """Whether float32 products on a device type are computed in less than float32: autocast, or a backend's setting.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.modes import is_lowered
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     is_lowered("cpu")
        True
    """
    if device != "meta" and torch.is_autocast_enabled(device):
        return True
    if torch.compiler.is_compiling():
        return False
    try:
        if torch.get_float32_matmul_precision() == "highest":
            return False
    except RuntimeError:  # set for one backend alone, by the newer of torch's two ways
        pass
    backend: Any = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    products = getattr(backend, "matmul", None)  # before torch 2.9 one setting for all, which was asked above
    return getattr(products, "fp32_precision", "coarse") not in ("ieee", "none")


def traced_or_transformed() -> bool:
    """Whether something other than eager autograd looks on: a compiler, a tracer, a transform, forward-mode AD."""
    return (
        torch.compiler.is_compiling() or tracing_state() is not None or transforms_are_active() or forward_mode_is_on()
    )


def is_seen_through() -> bool:
    """Whether a tracer, a transform or forward-mode AD looks on, which have to see through all that is computed.

    A compiler is none of them, unless a transform is within what it compiles.
    """
    return (
        (not torch.compiler.is_compiling() and tracing_state() is not None)
        or transforms_are_active()
        or forward_mode_is_on()
    )


def under_dispatch_mode() -> bool:
    """Whether a mode such as ``FakeTensorMode`` sees every operation, and may make something else of it."""
    return dispatch_modes() > 0


def has_numbers(tensor: Tensor) -> bool:
    """Whether there are numbers in a tensor; on the meta device and under ``FakeTensorMode`` it is a shape alone.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.modes import has_numbers
        >>> has_numbers(torch.ones(2)), has_numbers(torch.ones(2, device="meta"))
        (True, False)
    """
    return not (tensor.is_meta or is_fake(tensor))


def is_listened_to(*modules: nn.Module) -> bool:
    """Whether somebody waits for the calls of these modules: by a hook, one on all modules, or a forward of his own.

    Example:
        >>> from torch import nn
        >>> from spectral_param.torch_state.modes import is_listened_to
        >>> layer = nn.ReLU()
        >>> handle = layer.register_forward_hook(print)
        >>> is_listened_to(layer)
        True
    """
    if has_any_global_hook():
        return True
    for m in modules:  # noqa: SIM110  # asked at each read, and any() of a generator takes longer
        if m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks:
            return True
    return False
