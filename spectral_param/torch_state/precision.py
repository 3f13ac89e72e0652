"""Full precision where σ rests on it: neither autocast nor the faster, coarser float32 products of a backend."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from spectral_param.torch_state.modes import is_lowered

_lock = threading.Lock()
_inside = 0  # how many threads are within full precision
_before: list[str] = []  # the precisions of the backends that they found


def wide(tensor: Tensor) -> Tensor:
    """In float32 where it is narrower; differentiable.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.precision import wide
        >>> wide(torch.ones(2, dtype=torch.bfloat16)).dtype, wide(torch.ones(2, dtype=torch.float64)).dtype
        (torch.float32, torch.float64)
    """
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def moved_in_full(before: Tensor, moved: Tensor) -> Tensor:
    """A constant where a module has moved it to, but not narrower than float32.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.precision import moved_in_full
        >>> moved_in_full(torch.tensor(0.1), torch.tensor(0.1).half())
        tensor(0.1000)
    """
    return before.to(moved.device, torch.promote_types(moved.dtype, torch.float32))


@contextmanager
def full_precision(device: str) -> Iterator[None]:
    """Turns off what :func:`is_lowered` asks for, for as long as it lasts.

    ``torch.set_float32_matmul_precision`` is one for all threads: those that meet here share it, and the last to leave
    puts it back.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.modes import is_lowered
        >>> from spectral_param.torch_state.precision import full_precision
        >>> torch.set_float32_matmul_precision("medium")
        >>> with full_precision("cpu"):
        ...     is_lowered("cpu")
        False
        >>> is_lowered("cpu")
        True
        >>> torch.set_float32_matmul_precision("highest")
    """
    if not is_lowered(device):
        yield
        return
    coarse = not torch.compiler.is_compiling()
    if coarse:
        _enter()
    try:
        with torch.autocast(device if device != "meta" else "cpu", enabled=False):
            yield
    finally:
        if coarse:
            _leave()


def in_full_precision(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Runs the backward of an autograd function in the precision of its tensors, whatever surrounds ``backward()``.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.precision import in_full_precision
        >>> square = in_full_precision(lambda ctx, x: x @ x)
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     square(None, torch.eye(2)).dtype
        torch.float32
    """

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Tensor | None) -> Any:
        device = next((g.device.type for g in grads if g is not None), "cpu")
        if not is_lowered(device):
            return backward(ctx, *grads)
        with full_precision(device):
            return backward(ctx, *grads)

    return wrapped


def _enter() -> None:
    global _inside
    with _lock:
        if _inside == 0:
            _before[:] = _exchange(["ieee", "ieee"])
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            _exchange(_before)


def _exchange(precisions: list[str]) -> list[str]:
    """Sets the precisions of products on the CPU and on CUDA, and answers those before."""
    backends: Any = torch.backends
    if not hasattr(backends.mkldnn, "matmul"):  # before torch 2.9 there was one for both
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest" if precisions[0] == "ieee" else precisions[0])
        return [before, before]
    before_cpu, before_cuda = backends.mkldnn.matmul.fp32_precision, backends.cuda.matmul.fp32_precision
    backends.mkldnn.matmul.fp32_precision, backends.cuda.matmul.fp32_precision = precisions
    return [before_cpu, before_cuda]
