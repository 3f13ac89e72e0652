"""The scan with W as a diagonal less a product of two thin matrices, ``W = diag(σ) - L Rᵀ``, never built.

Note [Scan of low rank]
    Each step is two thin products, ``W h = σ h - L (Rᵀ h)``, in place in a buffer of states, and so is each step back,
    ``Wᵀ d = σ d - R (Lᵀ d)``. With ``a_t = Rᵀ h_{t-1}`` and ``e_t = Lᵀ d_t`` kept, the gradients are one product each
    over all steps at once: ``dL = -Σ d_t a_tᵀ``, ``dR = -Σ h_{t-1} e_tᵀ``, ``dσ = Σ d_t h_{t-1}``.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional import native
from spectral_param.functional.scan.activation import (
    activate,
    activate_,
    check_activation,
    number_of,
    through_activation,
)
from spectral_param.functional.scan.recording import gradient_of_last, projected_states
from spectral_param.functional.scan.shapes import check_inputs, check_shape
from spectral_param.torch_state.higher_order import gradients_by_running_again, must_run_again
from spectral_param.torch_state.modes import traced_or_transformed
from spectral_param.torch_state.precision import in_full_precision


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
        ValueError: if ``nonlinearity`` is another word, ``negative_slope`` is negative, or a shape does not fit.

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
    tensors = (x, h0, input_weight, sigma, left, right, bias)
    if traced_or_transformed():
        return _step_by_step(*tensors, nonlinearity, negative_slope)
    return _Scan.apply(*tensors, nonlinearity, negative_slope)


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


class _Scan(torch.autograd.Function):
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
        ctx.native = native.fits(x, h0, m, sigma, left, right, b)
        if ctx.native:
            way = native.Recurrence(-left.mT, sigma, right)
            states, inner = native.run(x, h0, m, b, way, number_of(nonlinearity), slope)
        else:
            states = projected_states(x, h0, m, b)
            inner = _fill_states(states, sigma, left, right, nonlinearity, slope)
        ctx.save_for_backward(x, h0, m, sigma, left, right, b, states, inner)
        ctx.nonlinearity, ctx.slope = nonlinearity, slope
        ctx.set_materialize_grads(False)
        return states[1:], states[-1].clone()

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        x, h0, m, sigma, left, right, b, states, inner = ctx.saved_tensors
        needs = ctx.needs_input_grad[:7]
        if must_run_again(grad_states, grad_last):
            run = functools.partial(_step_by_step, nonlinearity=ctx.nonlinearity, slope=ctx.slope)
            tensors = (x, h0, m, sigma, left, right, b)
            return (*gradients_by_running_again(run, tensors, needs, (grad_states, grad_last)), None, None)

        # x: (T, B, i)
        # m: (n, i)
        # sigma: (n,)
        # left: (n, r), L
        # right: (n, r), R
        # states: (T + 1, B, n), h_0 … h_T
        # inner: (T, B, r), or wider natively; Rᵀ h_{t-1}
        # grad_states: (T, B, n), or None
        steps, batch, size = x.shape
        n, rank = left.shape
        grad = gradient_of_last(h0, grad_states, grad_last)  # (B, n), by h_t as t falls
        if ctx.native and native.fits(x, grad, grad_states, m, sigma, left, right, states, inner):
            phi, back = (number_of(ctx.nonlinearity), ctx.slope), native.Recurrence(-right.mT, sigma, left)
            sums = native.run_back(x, states, inner, grad, grad_states, back, *phi, all_deltas=needs[0])
            d_x = None if sums.deltas is None else sums.deltas @ m
            d_h0 = torch.addmm(sums.first * sigma, sums.first @ left, right.mT, alpha=-1) if needs[1] else None
            d_b = sums.bias if needs[6] else None
            return d_x, d_h0, sums.input, sums.sigma, -sums.across, -sums.thin, d_b, None, None
        inner = inner[..., :rank]
        deltas = torch.empty_like(states[1:])  # (T, B, n), gradients before φ
        thin = torch.empty_like(inner)  # (T, B, r), their Lᵀ d
        h, d, e = states.unbind(0), deltas.unbind(0), thin.unbind(0)
        rt = right.mT
        for t in reversed(range(steps)):
            through_activation(grad, h[t + 1], ctx.nonlinearity, ctx.slope, out=d[t])
            torch.mm(d[t], left, out=e[t])
            if t > 0 and grad_states is not None:
                torch.addcmul(grad_states[t - 1], d[t], sigma, out=grad).addmm_(e[t], rt, alpha=-1)
            elif t > 0 or needs[1]:
                torch.mul(d[t], sigma, out=grad).addmm_(e[t], rt, alpha=-1)
        flat, before = deltas.view(steps * batch, n), states[:-1].view(steps * batch, n)
        return (
            (flat @ m).view_as(x) if needs[0] else None,  # (T, B, i)
            grad if needs[1] else None,  # (B, n)
            flat.mT @ x.reshape(steps * batch, size) if needs[2] else None,  # (n, i)
            _column_dots(deltas, states) if needs[3] else None,  # (n,)
            (flat.mT @ inner.reshape(steps * batch, rank)).neg_() if needs[4] else None,  # (n, r)
            (before.mT @ thin.reshape(steps * batch, rank)).neg_() if needs[5] else None,  # (n, r)
            flat.sum(0) if needs[6] else None,  # (n,)
            None,
            None,
        )


def _fill_states(states: Tensor, sigma: Tensor, left: Tensor, right: Tensor, nonlinearity: str, slope: float) -> Tensor:
    """In place of the projected inputs; answers ``h_{t-1} R`` of all steps."""
    inner = states.new_empty(len(states) - 1, states.shape[1], right.shape[1])
    lt = left.mT
    for (before, now), a in zip(pairwise(states.unbind(0)), inner.unbind(0), strict=True):
        torch.mm(before, right, out=a)
        now.addcmul_(before, sigma).addmm_(a, lt, alpha=-1)
        activate_(now, nonlinearity, slope)
    return inner


def _column_dots(deltas: Tensor, states: Tensor) -> Tensor:
    """Σ d_t h_{t-1} over steps and batch, (n,), a step at a time: their product over all steps would fill memory."""
    total = torch.zeros_like(deltas[0])
    for d, h in zip(deltas.unbind(0), states.unbind(0), strict=False):
        total.addcmul_(d, h)
    return total.sum(0)
