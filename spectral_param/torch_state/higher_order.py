"""Gradients that somebody differentiates or batches: what was computed by hand is run again in plain operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.torch_state.private import is_legacy_batched, transforms_are_active


def must_run_again(*grads: Tensor | None) -> bool:
    """Whether a backward is itself followed by autograd or by ``vmap``, which in-place operations would lose.

    Args:
        grads: what the backward is given; batched by the older ``vmap`` where ``is_grads_batched`` is asked for.
    """
    if torch.is_grad_enabled() or transforms_are_active():
        return True
    return any(grad is not None and is_legacy_batched(grad) for grad in grads)


def gradients_by_running_again(
    run: Callable[..., Any],
    tensors: Sequence[Tensor | None],
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients with a graph of their own, of a function run anew in operations that autograd records.

    Args:
        run: tensors to a tensor, or to several.
        tensors: what the function was given.
        needs: which of them need a gradient.
        grads: by its results; ``None`` for none.

    Returns:
        A gradient for each of ``tensors``; ``None`` where none is needed.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.higher_order import gradients_by_running_again
        >>> x = torch.ones(1, requires_grad=True)
        >>> [grad] = gradients_by_running_again(lambda x: (x**3, x), [x], [True], [torch.ones(1), None])
        >>> torch.autograd.grad(grad, x)
        (tensor([6.]),)
    """
    with_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        if with_graph:
            tensors = apart(tensors)
        else:
            pairs = zip(tensors, needs, strict=True)
            tensors = [t.detach().requires_grad_(need) if t is not None else None for t, need in pairs]
        results = run(*tensors)
        results = (results,) if isinstance(results, Tensor) else results
        pairs_of_grads = [(result, grad) for result, grad in zip(results, grads, strict=True) if grad is not None]
        needed = [t for t, need in zip(tensors, needs, strict=True) if need and t is not None]
        outputs, given = [result for result, _ in pairs_of_grads], [grad for _, grad in pairs_of_grads]
        found = iter(torch.autograd.grad(outputs, needed, given, create_graph=with_graph))
    return [next(found) if need else None for need in needs]


def apart(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The same tensors, each a node of its own in the graph.

    A gradient by one is then that through its own place alone: neither by way of another that was computed from it, nor
    through a second place where it was given too, both of which autograd adds by itself.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.higher_order import apart
        >>> x = torch.ones(1, requires_grad=True)
        >>> a, b = apart([x, 2 * x])
        >>> torch.autograd.grad(a + b, [a, b])
        (tensor([1.]), tensor([1.]))
    """
    return [None if t is None else t.view_as(t) for t in tensors]
