"""What is fine-tuned to what, and how: the same for all methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]


class Task(ABC):
    """A trained network and data of another kind than it was trained on. What is drawn is drawn from torch's seed.

    Attributes:
        name: in one word.
        weights: names of the linear layers that are fine-tuned.
        batch_size: rows of a step.
        score: what is measured.
        best: ``max`` or ``min``, which of several scores is the better one.
        digits: of the score behind the point.
        epochs: how often the data are seen.
    """

    name: ClassVar[str]
    weights: ClassVar[Sequence[str]]
    batch_size: ClassVar[int]
    score: ClassVar[str]
    best: ClassVar[Callable[[Sequence[float]], float]]
    digits: ClassVar[int]
    epochs: ClassVar[int] = 1

    @abstractmethod
    def network(self) -> nn.Module:
        """The network, untrained."""

    @abstractmethod
    def base(self) -> nn.Module:
        """The network, trained on what came before."""

    @abstractmethod
    def data(self) -> dict[str, Data]:
        """Inputs and targets of "train", "val" and "test"."""

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        """What is brought down."""

    @abstractmethod
    def measure(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
        """The score."""


def fit(task: Task, model: nn.Module, groups: list[dict[str, Any]], data: Data, *, rate: float, epochs: int) -> None:
    """Trains by Adam, its rate falling to 0 along a line."""
    optimizer = torch.optim.Adam(groups, lr=rate)
    rows = data[0].shape[0]
    steps = epochs * (rows // task.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    for _ in range(epochs):
        for batch in torch.randperm(rows).split(task.batch_size)[: rows // task.batch_size]:
            task.loss(model, data[0][batch], data[1][batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
