"""The compiled scan on tensors."""

from __future__ import annotations

from collections.abc import Mapping
from ctypes import Structure, byref, c_bool, c_float, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional.native.library import LANES, in_memory, is_loaded, is_plain, library
from spectral_param.torch_state.private import address

FEWEST = 32
"""Rows, of all steps, for which it pays to lay W out in panels."""


class Recurrence(NamedTuple):
    """What a step adds to rows h, of states or, going back, of gradients: ``σ h + (h thin) across``.

    Args:
        across: (r, n), or (n, n) without thin.
        sigma: σ, (n,); ``None`` with thin: then a step adds ``h across``.
        thin: (n, r).
    """

    across: Tensor
    sigma: Tensor | None = None
    thin: Tensor | None = None


class Sums(NamedTuple):
    """What the way back leaves, for d the gradients before φ.

    Args:
        deltas: d of all steps, (T, B, n), if asked for.
        first: d of the first step, (B, n).
        across: Σ dᵀ h, or with thin Σ dᵀ (h thin), (n, n) or (n, r).
        thin: Σ hᵀ (d thin), (n, r), of the way back's thin.
        sigma: Σ d h, (n,).
        input: Σ dᵀ x, (n, i).
        bias: Σ d, (n,).
    """

    deltas: Tensor | None
    first: Tensor
    across: Tensor
    thin: Tensor
    sigma: Tensor
    input: Tensor
    bias: Tensor


class _Scan(Structure):
    """``Scan`` of scan.cpp."""

    _fields_ = (
        *((name, c_int64) for name in ("steps", "batch", "n", "inputs", "rank", "line", "phi", "threads")),
        ("slope", c_float),
        *((name, c_void_p) for name in ("x", "input_weight", "bias", "sigma", "thin", "across", "states", "inner")),
        *((name, c_void_p) for name in ("last", "extra", "deltas", "first")),
        *((name, c_void_p) for name in ("d_across", "d_thin", "d_sigma", "d_input", "d_bias")),
    )


def fits(x: Tensor, h0: Tensor, *others: Tensor | None) -> bool:
    """Whether the native scan is there and made for such inputs, (T, B, i), first states and what goes with them."""
    if not is_loaded() or h0.shape[-1] % LANES or len(x) * len(h0) < FEWEST:
        return False
    return all(tensor is None or is_plain(tensor) for tensor in (x, h0, *others))


def run(
    x: Tensor, h0: Tensor, m: Tensor, b: Tensor | None, way: Recurrence, phi: int, slope: float
) -> tuple[Tensor, Tensor | None]:
    """The states h_0 … h_T, (T + 1, B, n), and with thin ``h_{t-1} thin`` of all steps, its columns filled up."""
    way = _filled(way)
    states = x.new_empty(len(x) + 1, *h0.shape)
    states[0] = h0
    inner = None if way.thin is None else x.new_empty(*x.shape[:2], way.thin.shape[1])
    given = {"x": in_memory(x), "input_weight": in_memory(m.mT), "bias": None if b is None else in_memory(b)}
    _call("scan_forward", x, way, phi, slope, given, {"states": states, "inner": inner})
    return states, inner


def run_back(
    x: Tensor,
    states: Tensor,
    inner: Tensor | None,
    last: Tensor,
    extra: Tensor | None,
    way: Recurrence,
    phi: int,
    slope: float,
    *,
    all_deltas: bool,
) -> Sums:
    """Sums of gradients over all steps, from what :func:`run` has filled.

    Args:
        x: inputs.
        states: of :func:`run`.
        inner: of :func:`run`, with or without the columns that fill it up.
        last: gradient by the last states, (B, n), all of it.
        extra: gradients by the states of all steps, (T, B, n), of which the last is not read.
        way: across and thin that bring a gradient back by a step.
        phi: φ, by its number in scan.cpp.
        slope: of leaky_relu.
        all_deltas: whether gradients before φ of all steps are kept.
    """
    rank = None if way.thin is None else way.thin.shape[1]
    way = _filled(way)
    batch, size = x.shape[1:]
    n, threads = states.shape[-1], min(torch.get_num_threads(), batch)
    deltas = last.new_empty(len(x), batch, n) if all_deltas else None
    first = last.new_empty(batch, n)
    line = n if way.thin is None else way.thin.shape[1]
    shapes = {"d_across": (n, line), "d_sigma": (n,), "d_input": (size, n), "d_bias": (n,)}
    shapes["d_thin"] = (n, 0 if way.thin is None else line)
    parts = {name: last.new_zeros(threads, *shape) for name, shape in shapes.items()}
    if inner is not None:
        inner = F.pad(inner, (0, -inner.shape[-1] % LANES))
    read = {"x": x, "states": states, "inner": inner, "last": last, "extra": extra}
    given = {name: None if tensor is None else in_memory(tensor) for name, tensor in read.items()}
    _call("scan_backward", x, way, phi, slope, given, {"deltas": deltas, "first": first, **parts})
    sums = {name: part.sum(0) if threads > 1 else part[0] for name, part in parts.items()}
    across, thin = sums["d_across"][:, : n if rank is None else rank], sums["d_thin"][:, :rank]
    return Sums(deltas, first, across, thin, sums["d_sigma"], sums["d_input"].mT, sums["d_bias"])


def _filled(way: Recurrence) -> Recurrence:
    """With zeros up to a multiple of 16 columns of thin; across is as it was, so that they meet nothing."""
    across, sigma, thin = way
    if thin is None or sigma is None:
        return Recurrence(in_memory(across))
    more = -thin.shape[1] % LANES
    return Recurrence(in_memory(across), in_memory(sigma), in_memory(F.pad(thin, (0, more))))


def _call(
    name: str,
    x: Tensor,
    way: Recurrence,
    phi: int,
    slope: float,
    read: Mapping[str, Tensor | None],
    written: Mapping[str, Tensor | None],
) -> None:
    steps, batch, inputs = x.shape
    rank, n = way.across.shape
    pointers = {name: address(tensor) for name, tensor in {**read, **way._asdict()}.items() if tensor is not None}
    pointers |= {name: tensor.data_ptr() for name, tensor in written.items() if tensor is not None}
    scan = _Scan(
        steps,
        batch,
        n,
        inputs,
        rank,
        rank if way.thin is None else way.thin.shape[1],
        phi,
        min(torch.get_num_threads(), batch),
        slope,
        **pointers,
    )
    function = getattr(library(), name)
    function.restype = c_bool
    if not function(byref(scan)):
        raise MemoryError(f"{name}: not enough memory.")
