"""The margin loss of a classifier: Definition 1 of the paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def margin_loss(logits: Tensor, target: Tensor, margin: float = 0.0) -> Tensor:
    """Share of samples whose class does not lead by more than γ: ``f(x)[y] ≤ γ + max_{j≠y} f(x)[j]`` (Definition 1).

    With γ = 0 it is the classification error, ties counted as errors.

    Args:
        logits: f(x), (N, C) or (N, C, …), floating, C ≥ 2. NaN leads by nothing.
        target: classes y from 0 to C - 1, (N,) or (N, …).
        margin: γ, at least 0.

    Returns:
        A scalar from 0 to 1; NaN without samples. Not differentiable.

    Raises:
        TypeError: if ``logits`` is not floating, or ``target`` not of integers.
        ValueError: if shapes do not fit, a class or ``margin`` is out of range.

    Example:
        >>> import torch
        >>> from spectral_param.bounds import margin_loss
        >>> logits = torch.tensor([[3.0, 1.0], [1.0, 2.0], [0.0, 4.0]])
        >>> target = torch.tensor([0, 1, 0])
        >>> margin_loss(logits, target), margin_loss(logits, target, margin=1.0)
        (tensor(0.3333), tensor(0.6667))
    """
    within, total = within_margin(logits, target, margin)
    return within / total


def check_classes(logits: Tensor, target: Tensor) -> None:
    """Raises the errors of :func:`margin_loss` for what does not fit.

    Example:
        >>> import torch
        >>> from spectral_param.bounds.margin_loss import check_classes
        >>> check_classes(torch.ones(2, 3), torch.tensor([0, 2]))
    """
    if not logits.dtype.is_floating_point:
        raise TypeError(f"logits: expected a floating dtype, got {logits.dtype}.")
    if target.dtype.is_floating_point or target.dtype.is_complex or target.dtype == torch.bool:
        raise TypeError(f"target: expected integers, got {target.dtype}.")
    if logits.dim() < 2 or logits.shape[1] < 2:
        raise ValueError(f"logits: expected (N, C, …) with C at least 2, got {tuple(logits.shape)}.")
    expected = (logits.shape[0], *logits.shape[2:])
    if tuple(target.shape) != expected:
        raise ValueError(f"target: expected shape {expected}, got {tuple(target.shape)}.")
    classes = logits.shape[1]
    if target.numel() and (target.min() < 0 or target.max() >= classes):
        raise ValueError(f"target: expected classes from 0 to {classes - 1}, got {target.min()} to {target.max()}.")


def check_margin(margin: float) -> None:
    """Raises the errors of :func:`margin_loss` for a γ that is none.

    Example:
        >>> from spectral_param.bounds.margin_loss import check_margin
        >>> check_margin(0.5)
    """
    if isinstance(margin, bool) or not isinstance(margin, (int, float)):
        raise TypeError(f"margin: expected a number, got {type(margin).__name__}.")
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin: expected a finite number of at least 0, got {margin}.")


def within_margin(logits: Tensor, target: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    """How many samples lie within the margin, and of how many; arguments and errors are those of :func:`margin_loss`.

    Example:
        >>> import torch
        >>> from spectral_param.bounds.margin_loss import within_margin
        >>> within_margin(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 1]), 1.0)
        (tensor(1), tensor(2))
    """
    check_margin(margin)
    check_classes(logits, target)
    scores = logits.detach().movedim(1, -1).to(torch.promote_types(logits.dtype, torch.float32))
    index = target.long().unsqueeze(-1)
    own = scores.gather(-1, index).squeeze(-1)
    best_other = scores.scatter(-1, index, -math.inf).amax(-1)
    leads = own > margin + best_other
    return (~leads).sum(), torch.tensor(target.numel(), device=target.device)
