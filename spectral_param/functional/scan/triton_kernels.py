"""The scan as Triton kernels; the one module that imports Triton, and imported only where it is there.

Note [Scan in one kernel]
    One program runs one sequence of the batch through all its steps, so that no step waits for another program. W is
    read once, as an (N, N) tile that stays in registers, N the power of two from n on; entries beyond n are zeros. A
    step is the product of that tile with the state, in float32 multiplications and sums whatever the dtype (never
    TF32), summed over the tile's rows: that sum runs within a thread and across warps, not across lanes. What the next
    step reads from memory is asked for one step ahead. States are rounded to their dtype at each step, so that the
    backward sees what the forward went on with.
"""

from __future__ import annotations

import triton
from triton import language as tl


@triton.jit
def _activate(z: tl.tensor, slope: tl.tensor, PHI: tl.constexpr) -> tl.tensor:
    """φ(z); not a number stays so."""
    if PHI == "relu":
        return tl.where(z <= 0, 0.0, z)
    if PHI == "leaky_relu":
        return tl.where(z > 0, z, z * slope)
    s = z * z  # tanh: an odd series near 0, where the quotient would lose digits
    near = z + z * s * (-0.333333333 + s * (0.133333333 + s * (-0.053968254 + s * 0.021869489)))
    e = tl.exp(-2 * tl.abs(z))
    far = (1 - e) / (1 + e)
    return tl.where(s < 0.0625, near, tl.where(z < 0, -far, far))


@triton.jit
def _through_activation(grad: tl.tensor, h: tl.tensor, slope: tl.tensor, PHI: tl.constexpr) -> tl.tensor:
    """The gradient before φ, from the one behind it and h = φ(z)."""
    if PHI == "relu":
        return tl.where(h <= 0, 0.0, grad)
    if PHI == "leaky_relu":
        return tl.where(h > 0, grad, grad * slope)
    return grad * (1 - h * h)


@triton.jit
def _square(w: tl.tensor, n: tl.tensor, N: tl.constexpr) -> tl.tensor:
    """A row-major (n, n) matrix as an (N, N) tile in float32."""
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    return tl.load(w + i * n + j, mask=(i < n) & (j < n), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["batch", "steps"])
def forward(
    states: tl.tensor,
    transposed: tl.tensor,
    batch: tl.tensor,
    steps: tl.tensor,
    n: tl.tensor,
    slope: tl.tensor,
    N: tl.constexpr,
    PHI: tl.constexpr,
) -> None:
    """Fills the states (T + 1, B, n) in place of the projected inputs, with Wᵀ; T ≥ 1."""
    w = _square(transposed, n, N)
    column = tl.arange(0, N)
    inside = column < n
    step = batch.to(tl.int64) * n
    at = states + tl.program_id(0).to(tl.int64) * n + column
    h = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    at += step
    projected = tl.load(at, mask=inside, other=0.0)
    for t in range(steps):
        ahead = tl.load(at + step, mask=inside & (t + 1 < steps), other=0.0)
        z = projected.to(tl.float32) + tl.sum(h[:, None] * w, 0)
        rounded = _activate(z, slope, PHI).to(states.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        h = rounded.to(tl.float32)
        projected = ahead
        at += step


@triton.jit(do_not_specialize=["batch", "steps"])
def backward(
    deltas: tl.tensor,
    states: tl.tensor,
    w: tl.tensor,
    grad_states: tl.tensor,
    batch: tl.tensor,
    steps: tl.tensor,
    n: tl.tensor,
    slope: tl.tensor,
    N: tl.constexpr,
    PHI: tl.constexpr,
    GIVEN: tl.constexpr,
) -> None:
    """Fills the gradients before φ (T, B, n), the last is there, with W; takes ``grad_states`` if ``GIVEN``."""
    tile = _square(w, n, N)
    column = tl.arange(0, N)
    inside = column < n
    step = batch.to(tl.int64) * n
    at = tl.program_id(0).to(tl.int64) * n + column + (steps - 1) * step  # of deltas; their states are a step further
    d = tl.load(deltas + at, mask=inside, other=0.0).to(tl.float32)
    more = inside & (steps > 1)
    h = tl.load(states + at, mask=more, other=0.0)
    grad = tl.load(grad_states + at - step, mask=more & GIVEN, other=0.0)
    for t in range(steps - 1):
        at -= step
        more = inside & (t + 2 < steps)
        h_ahead = tl.load(states + at, mask=more, other=0.0)
        grad_ahead = tl.load(grad_states + at - step, mask=more & GIVEN, other=0.0)
        total = grad.to(tl.float32) + tl.sum(d[:, None] * tile, 0)
        rounded = _through_activation(total, h.to(tl.float32), slope, PHI).to(deltas.dtype.element_ty)
        tl.store(deltas + at, rounded, mask=inside)
        d = rounded.to(tl.float32)
        h, grad = h_ahead, grad_ahead
