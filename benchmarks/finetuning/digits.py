"""Digits of MNIST, and the same turned by 60°: a perceptron that knows the first learns the others."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import InterpolationMode, rotate

from benchmarks.finetuning.task import Data, Task, fit
from datamodules.mnist import mnist_files, read_digits

ANGLE = 60
SIZES = {"train": 20_000, "val": 5_000}


class Digits(Task):
    """A perceptron 784-512-512-10 of MNIST; its two wide weights learn 20,000 digits turned by 60°, in 3 epochs."""

    name = "digits"
    weights = ("0", "2")
    batch_size = 128
    score = "accuracy, %"
    best = max
    digits = 1
    epochs = 3

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "mnist"

    def network(self) -> nn.Module:
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def base(self) -> nn.Module:
        """Trained by Adam on upright digits for 5 epochs."""
        model = self.network()
        fit(self, model, [{"params": list(model.parameters())}], self._read("train"), rate=1e-3, epochs=5)
        return model

    def data(self) -> dict[str, Data]:
        images, labels = self._read("train")
        order = torch.randperm(len(images))[: sum(SIZES.values())].split(list(SIZES.values()))
        parts = {part: (turned(images[rows]), labels[rows]) for part, rows in zip(SIZES, order, strict=True)}
        images, labels = self._read("t10k")
        return parts | {"test": (turned(images), labels)}

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(inputs), targets)

    def measure(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
        return 100 * (model(inputs).argmax(-1) == targets).float().mean().item()

    def _read(self, part: str) -> Data:
        images, labels = read_digits(*mnist_files(self.folder, part))
        return images / 255, labels


def turned(images: Tensor) -> Tensor:
    """Images (n, 784) turned about their centre."""
    return rotate(images.unflatten(-1, (28, 28)), ANGLE, InterpolationMode.BILINEAR).flatten(1)
