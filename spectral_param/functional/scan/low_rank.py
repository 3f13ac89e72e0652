"""The scan with W as a diagonal less a product of two thin matrices, ``W = diag(σ) - L Rᵀ``, never built.

Note [Scan of low rank]
    Each step is two thin products, ``W h = σ h - L (Rᵀ h)``, in place in a buffer of states, and so is each step back,
    ``Wᵀ d = σ d - R (Lᵀ d)``. With ``a_t = Rᵀ h_{t-1}`` and ``e_t = Lᵀ d_t`` kept, the gradients are one product each
    over all steps at once: ``dL = -Σ d_t a_tᵀ``, ``dR = -Σ h_{t-1} e_tᵀ``, ``dσ = Σ d_t h_{t-1}``.
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
from spectral_param.functional.scan.activation import (
    activate,
    activate_,
    check_activation,
    number_of,
    through_activation,
)
from spectral_param.functional.scan.recording import gradient_of_last, projected_states, recorded
from spectral_param.functional.scan.shapes import check_dtypes, check_inputs, check_shape
from spectral_param.torch_state.modes import has_numbers, is_seen_through


def low_rank_scan(
    x: Tensor,
    h0: Tensor,
    input_weight: Tensor,
    sigma: Tensor,
    left: Tensor,
    right: Tensor,
    bias: Tensor | None = None,
    nonlinearity: str = "tanh",
    negative_slope: float = 0.01,
) -> tuple[Tensor, Tensor]:
    """Runs a simple recurrent layer over a sequence, ``h_t = φ(σ h_{t-1} - L Rᵀ h_{t-1} + M x_t + b)``.

    Args:
        x: inputs, (T, B, i), time first, T ≥ 1.
        h0: state before the first step, (B, n).
        input_weight: M, (n, i).
        sigma: σ, (n,).
        left: L, (n, r).
        right: R, (n, r).
        bias: b, (n,), or ``None``.
        nonlinearity: φ, one of ``"tanh"``, ``"relu"``, ``"leaky_relu"``.
        negative_slope: slope of leaky_relu below zero; not negative.

    Returns:
        The states h_1 … h_T, (T, B, n), and the last of them, (B, n); differentiable any number of times.

    Raises:
        TypeError: if numbers are not real and floating, or dtypes differ.
        ValueError: if ``nonlinearity`` is another word, ``negative_slope`` is negative or not finite, or a shape does
            not fit.

    Example:
        >>> import torch
        >>> from spectral_param.functional import rnn_scan
        >>> from spectral_param.functional.scan import low_rank_scan
        >>> x, h0, m = torch.randn(4, 2, 3), torch.zeros(2, 5), torch.randn(5, 3)
        >>> sigma, left, right = torch.ones(5), torch.randn(5, 1), torch.randn(5, 1)
        >>> w = torch.diag(sigma) - left @ right.mT
        >>> torch.allclose(low_rank_scan(x, h0, m, sigma, left, right)[0], rnn_scan(x, h0, m, w)[0], atol=1e-5)
        True
    """
    check_activation(nonlinearity, negative_slope)
    n, rank = h0.shape[-1], left.shape[-1]
    check_inputs(x, h0, input_weight, bias, n)
    for name, tensor, shape in (("sigma", sigma, (n,)), ("left", left, (n, rank)), ("right", right, (n, rank))):
        check_shape(name, tensor, shape)
    check_dtypes(x, h0=h0, input_weight=input_weight, sigma=sigma, left=left, right=right, bias=bias)
    tensors = (x, h0, input_weight, sigma, left, right, bias)
    if is_seen_through():
        return _step_by_step(*tensors, nonlinearity, negative_slope)
    if torch.compiler.is_compiling():
        last, states = _operator(*tensors, nonlinearity, negative_slope)
        return states[1:], last
    last, states = _Scan.apply(*tensors, nonlinearity, negative_slope)
    return states, last


def _step_by_step(
    x: Tensor,
    h: Tensor,
    m: Tensor,
    sigma: Tensor,
    left: Tensor,
    right: Tensor,
    b: Tensor | None,
    nonlinearity: str,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """The same recurrence in operations that autograd records one by one."""
    states = []
    for projected in F.linear(x, m, b).unbind(0):
        h = activate(torch.addmm(projected + sigma * h, h @ right, left.mT, alpha=-1), nonlinearity, slope)
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
        sigma: Tensor,
        left: Tensor,
        right: Tensor,
        b: Tensor | None,
        nonlinearity: str,
        slope: float,
    ) -> tuple[Tensor, Tensor]:
        last, states, inner = _Scan.compute(x, h0, m, sigma, left, right, b, nonlinearity, slope)
        ctx.save_for_backward(x, h0, m, sigma, left, right, b, states, inner)
        ctx.rule, ctx.numbers = _Scan, (nonlinearity, slope)
        ctx.set_materialize_grads(False)
        return last, states[1:]

    @staticmethod
    def compute(
        x: Tensor,
        h0: Tensor,
        m: Tensor,
        sigma: Tensor,
        left: Tensor,
        right: Tensor,
        b: Tensor | None,
        nonlinearity: str,
        slope: float,
    ) -> list[Tensor]:
        if native.fits(x, h0, m, sigma, left, right, b):
            way = native.Recurrence(-left.mT, sigma, right)
            states, filled = native.run(x, h0, m, b, way, number_of(nonlinearity), slope)
            assert filled is not None
            inner = filled[..., : right.shape[1]].contiguous()
        else:
            states = projected_states(x, h0, m, b)
            inner = states.new_empty(*x.shape[:2], right.shape[1])
            if has_numbers(states):
                _fill_states(states, inner, sigma, left, right, nonlinearity, slope)
        return [states[-1].clone(), states, inner]

    @staticmethod
    def gradients(
        grads: Sequence[Tensor | None],
        tensors: Sequence[Tensor],
        kept: Sequence[Tensor],
        needs: Sequence[bool],
        nonlinearity: str,
        slope: float,
    ) -> list[Tensor | None]:
        x, h0, m, sigma, left, right, _ = tensors
        (states, inner), (grad_last, grad_states) = kept, grads
        # x: (T, B, i)
        # m: (n, i)
        # sigma: (n,)
        # left: (n, r), L
        # right: (n, r), R
        # states: (T + 1, B, n), h_0 … h_T
        # inner: (T, B, r), Rᵀ h_{t-1}
        # grad_states: (T, B, n), or None
        steps, batch, size = x.shape
        n, rank = left.shape
        grad = gradient_of_last(h0, grad_states, grad_last)  # (B, n), by h_t as t falls
        if native.fits(x, grad, grad_states, m, sigma, left, right, states, inner):
            phi, back = (number_of(nonlinearity), slope), native.Recurrence(-right.mT, sigma, left)
            sums = native.run_back(x, states, inner, grad, grad_states, back, *phi, all_deltas=needs[0])
            d_x = None if sums.deltas is None else sums.deltas @ m
            d_h0 = torch.addmm(sums.first * sigma, sums.first @ left, right.mT, alpha=-1) if needs[1] else None
            d_b = sums.bias if needs[6] else None
            return [d_x, d_h0, sums.input, sums.sigma, -sums.across, -sums.thin, d_b]
        deltas = torch.empty_like(states[1:])  # (T, B, n), gradients before φ
        thin = torch.empty_like(inner)  # (T, B, r), their Lᵀ d
        d_sigma = torch.empty_like(sigma) if needs[3] else None  # (n,)
        if has_numbers(deltas):
            _fill_deltas(deltas, thin, states, sigma, left, right, grad, grad_states, nonlinearity, slope, needs[1])
            d_sigma = _column_dots(deltas, states) if needs[3] else None
        flat, before = deltas.view(steps * batch, n), states[:-1].view(steps * batch, n)
        return [
            (flat @ m).view_as(x) if needs[0] else None,  # (T, B, i)
            grad if needs[1] else None,  # (B, n)
            flat.mT @ x.reshape(steps * batch, size) if needs[2] else None,  # (n, i)
            d_sigma,
            (flat.mT @ inner.reshape(steps * batch, rank)).neg_() if needs[4] else None,  # (n, r)
            (before.mT @ thin.reshape(steps * batch, rank)).neg_() if needs[5] else None,  # (n, r)
            flat.sum(0) if needs[6] else None,  # (n,)
        ]

    @staticmethod
    def plainly(*given: Any) -> tuple[Tensor, Tensor]:
        states, last = _step_by_step(*given)
        return last, states


def _fill_states(
    states: Tensor, inner: Tensor, sigma: Tensor, left: Tensor, right: Tensor, nonlinearity: str, slope: float
) -> None:
    """In place of the projected inputs, with ``h_{t-1} R`` of all steps."""
    lt = left.mT
    for (before, now), a in zip(pairwise(states.unbind(0)), inner.unbind(0), strict=True):
        torch.mm(before, right, out=a)
        now.addcmul_(before, sigma).addmm_(a, lt, alpha=-1)
        activate_(now, nonlinearity, slope)


def _fill_deltas(
    deltas: Tensor,
    thin: Tensor,
    states: Tensor,
    sigma: Tensor,
    left: Tensor,
    right: Tensor,
    grad: Tensor,
    grad_states: Tensor | None,
    nonlinearity: str,
    slope: float,
    to_first: bool,
) -> None:
    """Gradients before φ of all steps and their Lᵀ d; ``grad``, by the last state, becomes that by h₀ if asked for."""
    h, d, e, rt = states.unbind(0), deltas.unbind(0), thin.unbind(0), right.mT
    for t in reversed(range(len(d))):
        through_activation(grad, h[t + 1], nonlinearity, slope, out=d[t])
        torch.mm(d[t], left, out=e[t])
        if t > 0 and grad_states is not None:
            torch.addcmul(grad_states[t - 1], d[t], sigma, out=grad).addmm_(e[t], rt, alpha=-1)
        elif t > 0 or to_first:
            torch.mul(d[t], sigma, out=grad).addmm_(e[t], rt, alpha=-1)


def _column_dots(deltas: Tensor, states: Tensor) -> Tensor:
    """Σ d_t h_{t-1} over steps and batch, (n,), a step at a time: their product over all steps would fill memory."""
    total = torch.zeros_like(deltas[0])
    for d, h in zip(deltas.unbind(0), states.unbind(0), strict=False):
        total.addcmul_(d, h)
    return total.sum(0)


_operator = operator(
    "low_rank_scan",
    recorded(_Scan),
    "Tensor x, Tensor h0, Tensor m, Tensor sigma, Tensor left, Tensor right, Tensor? b",
    "str nonlinearity, float slope",
    widens=False,
)
