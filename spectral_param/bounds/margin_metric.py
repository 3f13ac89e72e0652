"""The margin loss over batches and processes, as a metric of torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param.bounds.margin_loss import check_margin, within_margin
from spectral_param.extras import extra

with extra("lightning"):
    from torchmetrics import Metric


class MarginLoss(Metric):
    """The margin loss over batches and processes, which on all samples at once is what ``margin_loss`` is.

    Together with a generalization gap of the same γ it bounds the error on new samples.

    Args:
        margin: γ, at least 0.
        kwargs: those of :class:`torchmetrics.Metric`.

    Raises:
        TypeError: if ``margin`` is no number.
        ValueError: if ``margin`` is negative or not finite.

    Example:
        >>> import torch
        >>> from spectral_param.bounds import MarginLoss
        >>> metric = MarginLoss(margin=1.0)
        >>> metric.update(torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[0.0, 4.0]]), torch.tensor([0]))
        >>> metric.compute()
        tensor(0.6667)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    within: Tensor
    total: Tensor

    def __init__(self, margin: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_margin(margin)
        self.margin = margin
        self.add_state("within", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Takes a batch in: logits (N, C, …), target (N, …)."""
        within, total = within_margin(logits, target, self.margin)
        self.within += within
        self.total += total

    def compute(self) -> Tensor:
        """The share over all batches, a scalar."""
        return self.within / self.total
