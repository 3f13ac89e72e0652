"""Data sets that lie in memory as tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from datamodules.batched import Batch, BatchedDataset


class Tensors(BatchedDataset):
    """Inputs and targets, row by row.

    Args:
        inputs: shape ``(n, …)``.
        targets: shape ``(n, …)``.

    Example:
        >>> samples = Tensors(torch.eye(3), torch.arange(3))
        >>> samples[2]
        (tensor([0., 0., 1.]), tensor(2))
    """

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the rows at ``indices``."""
        rows = torch.tensor(indices)
        return self.inputs[rows], self.targets[rows]
