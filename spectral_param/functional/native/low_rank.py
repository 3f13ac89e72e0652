"""The compiled low-rank weight on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.native.library import LANES, in_memory, is_loaded, is_plain, library
from spectral_param.sizes import packed_size
from spectral_param.torch_state.modes import has_numbers
from spectral_param.torch_state.private import address

LARGEST = 256
"""Beyond, the products of torch make up for what it costs to call them, above all on several threads."""


def fits_weight(sides: Sequence[int], *tensors: Tensor) -> bool:
    """Whether the native weight is there and made for such factors of a block with these sides."""
    return is_loaded() and all(n % LANES == 0 and n <= LARGEST for n in sides) and all(map(is_plain, tensors))


def weight(u: Tensor, sigma: Tensor, v: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """W, (…, p, q), and what :func:`weight_gradients` wants to have of it."""
    p, q, m1, m2 = sizes
    lead = sigma.shape[:-1]
    for name, tensor, length in (
        ("u", u, packed_size(p, m1)),
        ("sigma", sigma, min(p, q)),
        ("v", v, packed_size(q, m2)),
    ):
        if tensor.shape != (*lead, length):  # or memory of others would be read
            raise ValueError(f"{name}: expected shape {(*lead, length)}, got {tuple(tensor.shape)}.")
    u, sigma, v = map(in_memory, (u, sigma, v))
    w = sigma.new_empty(*lead, p, q)
    kept = sigma.new_empty(*lead, _call("low_rank_kept", (), (), sizes))
    if has_numbers(w):
        _call("low_rank_forward", (u, sigma, v), (w, kept), (lead.numel(), *sizes))
    return w, kept


def weight_gradients(
    grad: Tensor, u: Tensor, sigma: Tensor, v: Tensor, kept: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by packed U, σ and packed V from that by W."""
    grad, sigma = in_memory(grad), in_memory(sigma)
    d_u, d_sigma, d_v = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (u, sigma, v))
    count = sigma.shape[:-1].numel()
    if has_numbers(grad):
        _call("low_rank_backward", (grad, sigma), (kept, d_u, d_sigma, d_v), (count, *sizes))
    return d_u, d_sigma, d_v


def _call(name: str, read: Sequence[Tensor], written: Sequence[Tensor], numbers: Sequence[int]) -> Any:
    """Calls a function of the library, which fills tensors or, without any, returns a number."""
    function = getattr(library(), name)
    if function.argtypes is None:
        function.argtypes = [c_void_p] * (len(read) + len(written)) + [c_int64] * len(numbers)
        function.restype = None if written else c_int64
    return function(*map(address, read), *(tensor.data_ptr() for tensor in written), *numbers)
