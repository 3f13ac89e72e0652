"""What both scans share: states that begin with the projected inputs, and the first gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def projected_states(x: Tensor, h0: Tensor, m: Tensor, b: Tensor | None) -> Tensor:
    """A buffer (T + 1, B, n): h₀, then ``M x_t + b`` of all steps in one product, for the steps to add to.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.recording import projected_states
        >>> projected_states(torch.ones(2, 1, 1), torch.zeros(1, 1), torch.eye(1), None).flatten()
        tensor([0., 1., 1.])
    """
    steps, batch, size = x.shape
    states = x.new_empty(steps + 1, *h0.shape)
    states[0] = h0
    projected = states[1:].view(steps * batch, h0.shape[-1])
    if b is None:
        torch.mm(x.reshape(steps * batch, size), m.mT, out=projected)
    else:
        torch.addmm(b, x.reshape(steps * batch, size), m.mT, out=projected)
    return states


def gradient_of_last(h0: Tensor, grad_states: Tensor | None, grad_last: Tensor | None) -> Tensor:
    """The gradient by the last state, (B, n), as one of all states and as the last; a tensor of its own.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.recording import gradient_of_last
        >>> gradient_of_last(torch.zeros(1, 2), torch.ones(3, 1, 2), torch.ones(1, 2))
        tensor([[2., 2.]])
    """
    grad = torch.zeros_like(h0) if grad_last is None else grad_last.clone()
    if grad_states is not None:
        grad += grad_states[-1]
    return grad
