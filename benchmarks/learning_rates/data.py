"""What the programs are trained on: digits and letters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from datamodules.files import read_file
from datamodules.mnist import mnist_files, read_digits
from datamodules.penn_treebank import FILES

Draw = Callable[[torch.Generator], tuple[Tensor, Tensor]]
"""Draws the input and the target of one batch."""

WINDOW, LETTERS = 32, 64
_TEXT = 400_000  # letters read


@cache
def _digits(root: Path) -> tuple[Tensor, Tensor]:
    images, labels = read_digits(*mnist_files(root / "mnist", "train"))
    return images[:12_800].float() / 255, labels[:12_800]


@cache
def _letters(root: Path) -> Tensor:
    text = read_file(FILES["train"].find(root / "ptb"))[:_TEXT]
    kinds = sorted(set(text))
    return torch.tensor([kinds.index(letter) for letter in text])


def vectors(root: Path, batch: int = 128) -> Draw:
    """Images (batch, 784) and their digits."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images, labels = _digits(root)
        rows = torch.randint(len(labels), (batch,), generator=generator)
        return images[rows], labels[rows]

    return draw


def small_images(root: Path, batch: int = 64) -> Draw:
    """Images (batch, 1, 14, 14), each pixel the mean of four, and their digits."""
    whole = vectors(root, batch)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        images, labels = whole(generator)
        return torch.nn.functional.avg_pool2d(images.view(-1, 1, 28, 28), 2), labels

    return draw


def text(root: Path, batch: int = 16) -> Draw:
    """Windows (batch, 32) of letters, and the letters that follow them."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        letters = _letters(root)
        starts = torch.randint(len(letters) - WINDOW, (batch, 1), generator=generator)
        windows = letters[starts + torch.arange(WINDOW + 1)]
        return windows[:, :-1], windows[:, 1:]

    return draw
