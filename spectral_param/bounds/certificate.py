"""What a Lipschitz constant certifies of a classifier's answers, and a loss that asks for it.

Note [Certificate]
    With f of constant L in Euclidean norm, the lead ``f(x)[y] - f(x)[j]`` of a class over another moves by at most √2 L
    times as far as x, since ‖e_y - e_j‖ = √2. So no move shorter than ``lead / (√2 L)`` changes the answer, the least
    lead counting (Tsuzuku et al. 2018). The share of samples with a radius of ε or less is
    ``margin_loss(logits, target, margin=√2 L ε)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectral_param.bounds.margin_loss import check_classes


def certified_radius(logits: Tensor, target: Tensor, lipschitz: float | Tensor = 1.0) -> Tensor:
    """How far each sample may be moved, in Euclidean norm, without its right answer changing; Note [Certificate].

    Args:
        logits: f(x), (N, C), floating, C ≥ 2.
        target: classes y from 0 to C - 1, (N,).
        lipschitz: L of f, above 0: see :func:`~spectral_param.bounds.lipschitz_bound`.

    Returns:
        (N,), at least 0; 0 where the answer is wrong. In the dtype of the logits, whose rounding is not counted.

    Raises:
        TypeError: if ``logits`` is not floating, or ``target`` not of integers.
        ValueError: if shapes do not fit, a class or ``lipschitz`` is out of range.

    Example:
        >>> import torch
        >>> from spectral_param.bounds import certified_radius
        >>> certified_radius(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 0]), lipschitz=2.0)
        tensor([0.7071, 0.0000])
    """
    scale = _scale(logits, target, lipschitz)
    index = target.long().unsqueeze(-1)
    others = logits.scatter(-1, index, -math.inf).amax(-1)
    return (logits.gather(-1, index).squeeze(-1) - others).clamp_min(0) / scale


def certified_hinge_loss(logits: Tensor, target: Tensor, radius: float, lipschitz: float | Tensor = 1.0) -> Tensor:
    """The multi-class hinge loss whose margin is a radius: zero where every sample is certified for it.

    ``mean over samples of Σ_{j≠y} max(0, √2 L ε - (f(x)[y] - f(x)[j])) / C``: with L = 1 the
    ``nn.MultiMarginLoss(margin=√2 ε)`` that 1-Lipschitz networks are trained with (Anil et al. 2019, Li et al. 2019). A
    radius above the one that is asked for keeps right answers from resting at the edge of it.

    Args:
        logits: f(x), (N, C), floating, C ≥ 2.
        target: classes y from 0 to C - 1, (N,).
        radius: ε, above 0.
        lipschitz: L of f, above 0; a gradient goes through it.

    Returns:
        A scalar, differentiable.

    Raises:
        TypeError: if ``logits`` is not floating, or ``target`` not of integers.
        ValueError: if shapes do not fit, or a class, ``radius`` or ``lipschitz`` is out of range.

    Example:
        >>> import torch
        >>> from spectral_param.bounds import certified_hinge_loss
        >>> logits, target = torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 1])
        >>> certified_hinge_loss(logits, target, radius=1.0)
        tensor(0.1036)
    """
    if not 0 < radius < math.inf:
        raise ValueError(f"radius: expected a finite number above 0, got {radius}.")
    scale = _scale(logits, target, lipschitz)
    index = target.long().unsqueeze(-1)
    missing = (scale * radius - (logits.gather(-1, index) - logits)).clamp_min(0)
    return missing.scatter(-1, index, 0.0).sum(-1).mean() / logits.shape[-1]


def _scale(logits: Tensor, target: Tensor, lipschitz: float | Tensor) -> Tensor:
    """√2 L, by which leads are divided."""
    check_classes(logits, target)
    if logits.dim() != 2:
        raise ValueError(f"logits: expected (N, C), got {tuple(logits.shape)}.")
    scale = torch.as_tensor(lipschitz).to(logits) * math.sqrt(2)
    if scale.dim() or not 0 < scale < math.inf:
        raise ValueError(f"lipschitz: expected a finite number above 0, got {lipschitz}.")
    return scale
