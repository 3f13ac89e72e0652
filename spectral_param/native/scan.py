"""The compiled scan on tensors."""

from __future__ import annotations

from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

from spectral_param.native.library import is_loaded, is_plain, library
from spectral_param.scan.activation import NONLINEARITIES


def fits(states: Tensor, *others: Tensor) -> bool:
    """Whether the native scan is there and made for such states, (T + 1, B, n), and what goes with them."""
    return is_loaded() and all(map(is_plain, (states, *others))) and states.shape[-1] % 16 == 0 and states.numel() > 0


def forward_(states: Tensor, w: Tensor, nonlinearity: str, slope: float) -> None:
    """Fills the states, in place of the projected inputs behind the first of them."""
    w = w.contiguous()
    library().scan_forward(_at(w), _at(states), *_sizes(states), *_phi(nonlinearity, slope), _threads())


def backward_(
    deltas: Tensor, states: Tensor, w: Tensor, grad_states: Tensor | None, nonlinearity: str, slope: float
) -> None:
    """Fills the gradients before φ, (T, B, n), the last of which is there."""
    w = w.contiguous()
    extra = None if grad_states is None else grad_states.contiguous()
    address = None if extra is None else _at(extra)
    phi = _phi(nonlinearity, slope)
    library().scan_backward(_at(w), _at(states), _at(deltas), address, *_sizes(states), *phi, _threads())


def summed_outer_products(d: Tensor, h: Tensor) -> Tensor:
    """``dᵀ h`` for contiguous (rows, n) each."""
    rows, n = d.shape
    parts = d.new_zeros(torch.get_num_threads(), n, n)
    library().scan_outer(_at(d), _at(h), _at(parts), c_int64(rows), c_int64(n), _threads())
    return parts.sum(0) if len(parts) > 1 else parts[0]


def _at(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def _sizes(states: Tensor) -> tuple[c_int64, c_int64, c_int64]:
    return c_int64(states.shape[0] - 1), c_int64(states.shape[1]), c_int64(states.shape[2])


def _phi(nonlinearity: str, slope: float) -> tuple[c_int64, c_float]:
    return c_int64(NONLINEARITIES.index(nonlinearity)), c_float(slope)


def _threads() -> c_int64:
    return c_int64(torch.get_num_threads())
