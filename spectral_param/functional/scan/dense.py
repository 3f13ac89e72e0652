"""The scan with a matrix W, one product a step.

Note [Scan]
    Forward: one product projects all inputs into a buffer of states, then each step adds ``h_{t-1} Wᵀ`` and applies
    φ in place. Backward: each step is one product, and the gradients of W, M and b are one product each over all
    steps at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional import native
from spectral_param.functional.by_hand import ByHand, operator
from spectral_param.functional.scan import triton_scan
from spectral_param.functional.scan.activation import (
    activate,
    activate_,
    check_activation,
    number_of,
    through_activation,
)
from spectral_param.functional.scan.recording import gradient_of_last, projected_states, recorded
from spectral_param.functional.scan.shapes import check_dtypes, check_inputs, check_shape
from spectral_param.torch_state.modes import autocast_is_on, has_numbers, is_seen_through


def rnn_scan(
    x: Tensor,
    h0: Tensor,
    input_weight: Tensor,
    recurrent_weight: Tensor,
    bias: Tensor | None = None,
    nonlinearity: str = "tanh",
    negative_slope: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """Runs a simple recurrent layer over a sequence, ``h_t = φ(W h_{t-1} + M x_t + b)``.

    Args:
        x: inputs, (T, B, i), time first.
        h0: state before the first step, (B, n).
        input_weight: M, (n, i).
        recurrent_weight: W, (n, n), read once for the whole sequence.
        bias: b, (n,), or ``None``.
        nonlinearity: φ, one of ``"tanh"``, ``"relu"``, ``"leaky_relu"``.
        negative_slope: slope of leaky_relu below zero; not negative.

    Returns:
        The states h_1 … h_T, (T, B, n), and the last of them, (B, n); differentiable any number of times.

    Raises:
        TypeError: if numbers are not real and floating, or dtypes differ, but for what autocast makes equal.
        ValueError: if ``nonlinearity`` is another word, ``negative_slope`` is negative or not finite, or a shape does
            not fit.

    Example:
        >>> import torch
        >>> from spectral_param.functional import rnn_scan
        >>> x, h0, one = torch.ones(2, 1, 1), torch.zeros(1, 1), torch.eye(1)
        >>> states, last = rnn_scan(x, h0, input_weight=one, recurrent_weight=one, nonlinearity="relu")
        >>> states.flatten(), last
        (tensor([1., 2.]), tensor([[2.]]))
    """
    check_activation(nonlinearity, negative_slope)
    n = recurrent_weight.shape[0]
    check_inputs(x, h0, input_weight, bias, n)
    check_shape("recurrent_weight", recurrent_weight, (n, n))
    tensors = (x, h0, input_weight, recurrent_weight, bias)
    tensors = _under_autocast(tensors, x.device.type)
    check_dtypes(tensors[0], h0=tensors[1], input_weight=tensors[2], recurrent_weight=tensors[3], bias=tensors[4])
    if len(x) == 0:
        return x.new_empty(0, *h0.shape), h0
    if is_seen_through():
        return _step_by_step(*tensors, nonlinearity, negative_slope)
    if torch.compiler.is_compiling():
        last, states = _operator(*tensors, nonlinearity, negative_slope)
        return states[1:], last
    last, states = _Scan.apply(*tensors, nonlinearity, negative_slope)
    return states, last


def _under_autocast(tensors: tuple[Tensor | None, ...], device: str) -> tuple[Any, ...]:
    """Autocast does not see in-place products, so its dtype is applied by hand."""
    if not autocast_is_on(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def _step_by_step(
    x: Tensor, h: Tensor, m: Tensor, w: Tensor, b: Tensor | None, nonlinearity: str, slope: float
) -> tuple[Tensor, Tensor]:
    """The same recurrence in operations that autograd records one by one."""
    states = []
    for projected in F.linear(x, m, b).unbind(0):
        h = activate(torch.addmm(projected, h, w.mT), nonlinearity, slope)
        states.append(h)
    return torch.stack(states), h


class _Scan(ByHand):
    """The last state, and those of all steps; what is kept begins with h₀."""

    results = 2

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        h0: Tensor,
        m: Tensor,
        w: Tensor,
        b: Tensor | None,
        nonlinearity: str,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        last, states = _Scan.compute(x, h0, m, w, b, nonlinearity, slope)
        ctx.save_for_backward(x, h0, m, w, b, states)
        ctx.rule, ctx.numbers = _Scan, (nonlinearity, slope)
        ctx.set_materialize_grads(False)
        return last, states[1:]

    @staticmethod
    def compute(
        x: Tensor, h0: Tensor, m: Tensor, w: Tensor, b: Tensor | None, nonlinearity: str, slope: float
    ) -> list[Tensor]:
        if native.fits(x, h0, m, w, b):
            states, _ = native.run(x, h0, m, b, native.Recurrence(w.mT), number_of(nonlinearity), slope)
        else:
            states = projected_states(x, h0, m, b)
            if has_numbers(states):
                _fill_states(states, w, nonlinearity, slope)
        return [states[-1].clone(), states]

    @staticmethod
    def gradients(
        grads: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
        nonlinearity: str,
        slope: float,
    ) -> list[Tensor | None]:
        x, h0, m, w, _ = tensors
        [states], (grad_last, grad_states) = kept, grads
        # x: (T, B, i)
        # w: (n, n)
        # m: (n, i)
        # states: (T + 1, B, n), h_0 … h_T
        # grad_states: (T, B, n), or None
        steps, batch, size = x.shape
        n = w.shape[0]
        grad = gradient_of_last(h0, grad_states, grad_last)  # (B, n), by h_t as t falls
        if native.fits(x, grad, grad_states, m, w, states):
            back = native.Recurrence(w)
            phi = number_of(nonlinearity), slope
            sums = native.run_back(x, states, None, grad, grad_states, back, *phi, all_deltas=needs[0])
            d_x = None if sums.deltas is None else sums.deltas @ m
            return [d_x, sums.first @ w if needs[1] else None, sums.input, sums.across, sums.bias if needs[4] else None]
        deltas = torch.empty_like(states[1:])  # (T, B, n), gradients before φ
        if has_numbers(deltas):
            _fill_deltas(deltas, states, w, grad, grad_states, nonlinearity, slope)
        flat = deltas.view(steps * batch, n)
        return [
            (flat @ m).view_as(x) if needs[0] else None,  # (T, B, i)
            deltas[0] @ w if needs[1] else None,  # (B, n)
            flat.mT @ x.reshape(steps * batch, size) if needs[2] else None,  # (n, i)
            flat.mT @ states[:-1].view(steps * batch, n) if needs[3] else None,  # (n, n)
            flat.sum(0) if needs[4] else None,  # (n,)
        ]

    @staticmethod
    def plainly(*given: Any) -> tuple[Tensor, Tensor]:
        states, last = _step_by_step(*given)
        return last, states


def _fill_states(states: Tensor, w: Tensor, nonlinearity: str, slope: float) -> None:
    if triton_scan.fits(states, w):
        triton_scan.forward_(states, w, nonlinearity, slope)
        return
    h, wt = states.unbind(0), w.mT
    for before, now in pairwise(h):
        now.addmm_(before, wt)
        activate_(now, nonlinearity, slope)


def _fill_deltas(
    deltas: Tensor,
    states: Tensor,
    w: Tensor,
    grad: Tensor,
    grad_states: Tensor | None,
    nonlinearity: str,
    slope: float,
) -> None:
    """Gradients before φ of all steps, from ``grad`` by the last state, which is written to."""
    h, d = states.unbind(0), deltas.unbind(0)
    through_activation(grad, h[-1], nonlinearity, slope, out=d[-1])
    if triton_scan.fits(states, w):
        triton_scan.backward_(deltas, states, w, grad_states, nonlinearity, slope)
        return
    for t in reversed(range(len(d) - 1)):
        if grad_states is None:
            torch.mm(d[t + 1], w, out=grad)
        else:
            torch.addmm(grad_states[t], d[t + 1], w, out=grad)
        through_activation(grad, h[t + 1], nonlinearity, slope, out=d[t])


_operator = operator(
    "rnn_scan",
    recorded(_Scan),
    "Tensor x, Tensor h0, Tensor m, Tensor w, Tensor? b",
    "str nonlinearity, float slope",
    widens=False,
)
