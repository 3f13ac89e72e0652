"""The recurrence h_t = φ(W h_{t-1} + M x_t + b) over a whole sequence.

Note [Scan]
    Forward: one product projects all inputs into a buffer of states, then each step adds ``h_{t-1} Wᵀ`` and applies
    φ in place. Backward: each step is one product, and the gradients of W, M and b are one product each over all
    steps at once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param.precision import autocast_is_on, without_autocast

NONLINEARITIES = ("tanh", "relu", "leaky_relu")


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
        ValueError: if ``nonlinearity`` is another word, ``negative_slope`` is negative, or a shape does not fit.

    Example:
        >>> import torch
        >>> from spectral_param.functional import rnn_scan
        >>> x, h0, one = torch.ones(2, 1, 1), torch.zeros(1, 1), torch.eye(1)
        >>> states, last = rnn_scan(x, h0, input_weight=one, recurrent_weight=one, nonlinearity="relu")
        >>> states.flatten(), last
        (tensor([1., 2.]), tensor([[2.]]))
    """
    if nonlinearity not in NONLINEARITIES:
        raise ValueError(f"nonlinearity: expected one of {NONLINEARITIES}, got {nonlinearity!r}.")
    if negative_slope < 0:
        raise ValueError(f"negative_slope: expected at least 0, got {negative_slope}.")
    n = recurrent_weight.shape[0]
    expected = {
        "x": (*x.shape[:2], input_weight.shape[1]),
        "h0": (x.shape[1], n),
        "recurrent_weight": (n, n),
    }
    for name, tensor in (("x", x), ("h0", h0), ("recurrent_weight", recurrent_weight)):
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(f"{name}: expected shape {expected[name]}, got {tuple(tensor.shape)}.")
    tensors = (x, h0, input_weight, recurrent_weight, bias)
    tensors = _under_autocast(tensors, x.device.type)
    if len(x) == 0:
        return x.new_empty(0, *h0.shape), h0
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return _step_by_step(*tensors, nonlinearity, negative_slope)
    return _Scan.apply(*tensors, nonlinearity, negative_slope)


def _under_autocast(tensors: tuple[Tensor | None, ...], device: str) -> tuple[Any, ...]:
    """Autocast does not see in-place products, so its dtype is applied by hand."""
    if not autocast_is_on(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def _activate(z: Tensor, nonlinearity: str, slope: float) -> Tensor:
    if nonlinearity == "tanh":
        return torch.tanh(z)
    return torch.relu(z) if nonlinearity == "relu" else F.leaky_relu(z, slope)


def _activate_(z: Tensor, nonlinearity: str, slope: float) -> None:
    if nonlinearity == "tanh":
        z.tanh_()
    elif nonlinearity == "relu":
        z.relu_()
    else:
        F.leaky_relu_(z, slope)


def _through_activation(grad: Tensor, h: Tensor, nonlinearity: str, slope: float, out: Tensor) -> None:
    """``out`` = grad φ'(z), from h = φ(z) alone."""
    aten = torch.ops.aten
    if nonlinearity == "tanh":
        aten.tanh_backward.grad_input(grad, h, grad_input=out)
    elif nonlinearity == "relu":
        aten.threshold_backward.grad_input(grad, h, 0, grad_input=out)
    else:
        aten.leaky_relu_backward.grad_input(grad, h, slope, True, grad_input=out)


def _step_by_step(
    x: Tensor, h: Tensor, m: Tensor, w: Tensor, b: Tensor | None, nonlinearity: str, slope: float
) -> tuple[Tensor, Tensor]:
    """The same recurrence in operations that autograd records one by one."""
    states = []
    for projected in F.linear(x, m, b).unbind(0):
        h = _activate(torch.addmm(projected, h, w.mT), nonlinearity, slope)
        states.append(h)
    return torch.stack(states), h


class _Scan(torch.autograd.Function):
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
        steps, batch, size = x.shape
        n = w.shape[0]
        states = x.new_empty(steps + 1, batch, n)
        states[0] = h0
        projected = states[1:].view(steps * batch, n)
        if b is None:
            torch.mm(x.reshape(steps * batch, size), m.mT, out=projected)
        else:
            torch.addmm(b, x.reshape(steps * batch, size), m.mT, out=projected)
        h = states.unbind(0)
        wt = w.mT
        for t in range(steps):
            h[t + 1].addmm_(h[t], wt)
            _activate_(h[t + 1], nonlinearity, slope)
        ctx.save_for_backward(x, h0, m, w, b, states)
        ctx.nonlinearity, ctx.slope = nonlinearity, slope
        ctx.set_materialize_grads(False)
        return states[1:], h[steps].clone()

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad_states: Tensor | None, grad_last: Tensor | None) -> tuple[Any, ...]:
        x, h0, m, w, b, states = ctx.saved_tensors
        needs = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():  # of higher order: compute anew with a graph
            outputs = _step_by_step(x, h0, m, w, b, ctx.nonlinearity, ctx.slope)
            pairs = [(o, g) for o, g in zip(outputs, (grad_states, grad_last), strict=True) if g is not None]
            needed = [t for t, need in zip((x, h0, m, w, b), needs, strict=True) if need]
            grads = torch.autograd.grad([o for o, _ in pairs], needed, [g for _, g in pairs], create_graph=True)
            found = iter(grads)
            return (*(next(found) if need else None for need in needs), None, None)

        steps, batch, size = x.shape
        n = w.shape[0]
        deltas = torch.empty_like(states[1:])  # gradients before φ
        h, d = states.unbind(0), deltas.unbind(0)
        grad = torch.zeros_like(h0) if grad_last is None else grad_last.clone()
        if grad_states is not None:
            grad += grad_states[-1]
        for t in reversed(range(steps)):
            _through_activation(grad, h[t + 1], ctx.nonlinearity, ctx.slope, out=d[t])
            if t > 0 and grad_states is not None:
                torch.addmm(grad_states[t - 1], d[t], w, out=grad)
            elif t > 0 or needs[1]:
                torch.mm(d[t], w, out=grad)
        flat = deltas.view(steps * batch, n)
        return (
            (flat @ m).view_as(x) if needs[0] else None,
            grad if needs[1] else None,
            flat.mT @ x.reshape(steps * batch, size) if needs[2] else None,
            flat.mT @ states[:-1].view(steps * batch, n) if needs[3] else None,
            flat.sum(0) if needs[4] else None,
            None,
            None,
        )
