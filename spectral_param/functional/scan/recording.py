"""What both scans share: states that begin with the projected inputs, the first gradient, the form of an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.by_hand import ByHand


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


def recorded(scan: type[ByHand]) -> type[ByHand]:
    """A scan as its operator has it: the states are those that are kept, h₀ first, since no two may share memory."""

    class Recorded(scan):  # type: ignore[valid-type, misc]
        @staticmethod
        def gradients(
            grads: Sequence[Tensor | None],
            tensors: Sequence[Tensor],
            kept: Sequence[Tensor],
            needs: Sequence[bool],
            *numbers: Any,
        ) -> list[Tensor | None]:
            last, states = grads
            after = None if states is None else states[1:]
            d_x, d_h0, *others = scan.gradients((last, after), tensors, kept, needs, *numbers)
            if states is not None and d_h0 is not None:
                d_h0 = d_h0 + states[0]
            return [d_x, d_h0, *others]

        @staticmethod
        def plainly(x: Tensor, h0: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
            last, states = scan.plainly(x, h0, *given)
            return last, torch.cat([h0.unsqueeze(0), states])

    return Recorded
