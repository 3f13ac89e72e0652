"""What both scans share: states that begin with the projected inputs, the first gradient, those of higher order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def differentiable_gradients(
    run: Callable[..., tuple[Tensor, Tensor]],
    tensors: Sequence[Tensor | None],
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients with a graph of their own, by running the recurrence anew in operations that autograd records.

    Args:
        run: tensors to (states, last state).
        tensors: what the scan was given.
        needs: which of them need a gradient.
        grads: by the states and the last of them; ``None`` for none.

    Example:
        >>> import torch
        >>> from spectral_param.functional.scan.recording import differentiable_gradients
        >>> x = torch.ones(1, requires_grad=True)
        >>> [grad] = differentiable_gradients(lambda x: (x**3, x), [x], [True], [torch.ones(1), None])
        >>> torch.autograd.grad(grad, x)
        (tensor([6.]),)
    """
    pairs = [(output, grad) for output, grad in zip(run(*tensors), grads, strict=True) if grad is not None]
    needed = [t for t, need in zip(tensors, needs, strict=True) if need and t is not None]
    outputs, given = [output for output, _ in pairs], [grad for _, grad in pairs]
    found = iter(torch.autograd.grad(outputs, needed, given, create_graph=True))
    return [next(found) if need else None for need in needs]
