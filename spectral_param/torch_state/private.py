"""What torch has and promises nobody, in one file: whoever meets another version of it looks here first.

All of it is in every torch from 2.8 on, and what differs between them is settled here. Attributes with an underscore of
modules, parameters and optimizers are asked for where they are needed; ``docs/architecture.md`` lists those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map

__all__ = [
    "BatchNorm",
    "ConvNd",
    "NormBase",
    "address",
    "dispatch_modes",
    "fill_flat_weights",
    "forward_mode_is_on",
    "graph_task",
    "has_any_global_hook",
    "has_global_forward_hook",
    "is_compiled",
    "is_fake",
    "is_legacy_batched",
    "is_traceable_wrapper_subclass",
    "lazy_clone",
    "memory_users",
    "saved_tensor_hooks",
    "tracing_state",
    "transforms_are_active",
    "tree_map",
    "unsafe_view",
    "weight_cache",
    "widen_under_autocast",
]

_C: Any = torch._C

tracing_state: Callable[[], Any] = _C._get_tracing_state
"""That of ``torch.jit.trace``, ``None`` for none."""

transforms_are_active: Callable[[], bool] = _C._are_functorch_transforms_active
"""Whether ``vmap``, ``grad`` and their kin look on."""

is_legacy_batched: Callable[[Tensor], bool] = _C._functorch.is_legacy_batchedtensor
"""Whether the older ``vmap`` has batched a tensor, as ``is_grads_batched`` does."""

dispatch_modes: Callable[[], int] = _C._len_torch_dispatch_stack
"""How many modes such as ``FakeTensorMode`` see every operation."""

saved_tensor_hooks: Callable[[], Any] = functools.partial(_C._autograd._top_saved_tensors_default_hooks, False)
"""The hooks by which what is computed now is saved for the backward, ``None`` for none."""

graph_task: Callable[[], int] = _C._current_graph_task_id
"""Number of the backward that runs, negative for none."""

address: Callable[[Tensor], int] = _C._data_address
"""Where a tensor's numbers are; asked for so, they are not taken for written to."""

lazy_clone: Callable[[Tensor], Tensor] = torch._lazy_clone
"""A tensor that shares memory until either is written to; ``RuntimeError`` where memory is not torch's own."""

has_any_global_hook: Callable[[], bool] = torch_module._has_any_global_hook
"""Whether somebody waits for the calls of all modules."""

unsafe_view: Callable[..., Tensor] = torch.ops.aten._unsafe_view
"""A view that autograd takes for none, of a tensor that nobody else has."""

fill_flat_weights: Callable[[nn.RNNBase], None] = nn.RNNBase._init_flat_weights
"""Writes the list of a recurrent layer's weights anew."""


def forward_mode_is_on() -> bool:
    """Whether there is a level of forward-mode AD."""
    return torch.autograd.forward_ad._current_level >= 0


def has_global_forward_hook() -> bool:
    """Whether a hook may change the input or output of every module."""
    return bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


def weight_cache() -> dict[tuple[int, str], Tensor | None] | None:
    """Where ``torch.nn.utils.parametrize.cached()`` keeps weights; ``None`` outside it."""
    return parametrize._cache if parametrize._cache_enabled else None


def is_compiled(module: nn.Module) -> bool:
    """Whether ``torch.compile`` works on a module, around it or in place."""
    from torch._dynamo import OptimizedModule  # here, since it takes seconds to import

    return isinstance(module, OptimizedModule) or module._compiled_call_impl is not None


def memory_users(tensor: Tensor) -> int:
    """How many look at the memory of a tensor, itself among them; views, NumPy and saved graphs may be more.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.private import memory_users
        >>> weight = torch.ones(2)
        >>> view = weight.view(1, 2)
        >>> memory_users(weight)
        2
    """
    return _storage_uses(tensor) - _ALONE + 1


def _storage_uses(tensor: Tensor) -> int:
    return _C._storage_Use_Count(tensor.untyped_storage()._cdata)


_ALONE = _storage_uses(torch.empty(1))  # with, in newer versions, the object by which it was asked


def widen_under_autocast(operator: str, library: torch.library.Library) -> None:
    """Has an operator take float32 within autocast, on the devices for which this torch lets it be said."""
    for device in ("cpu", "cuda", "mps", "xpu"):
        with suppress(ValueError):  # older versions take it for the CPU and CUDA alone
            torch.library.register_autocast(operator, device, torch.float32, lib=library)
