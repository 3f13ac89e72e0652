"""MNIST read pixel by pixel, or some pixels at a time."""

from pathlib import Path
from typing import Literal

import torch

from datamodules.batched import Batch
from datamodules.mnist import MNIST, PIXELS

# the task is the same in every run, so the permutation does not follow the run's seed
PERMUTATION_SEED = 0


class PixelMNIST(MNIST):
    """MNIST as sequences (Section 7.2 of the paper): a digit is read in ``seq_len`` equal steps.

    An input has the shape ``(batch, seq_len, 784 / seq_len)``, float32 in [0, 1]: 784 steps of one
    pixel, 392 of two, or 28 rows of 28. The target of shape ``(batch,)``, int64, is the digit. With
    the original files there are 55,000 training, 5,000 validation and 10,000 test images.

    Args:
        root: folder with the four files of MNIST in ``MNIST/raw``, extracted or as ``.gz``. Files
            that are there are only read; missing ones are downloaded into it.
        seq_len: steps of a sequence: 28, 392 or 784.
        permute: whether the pixels are shuffled, by one permutation that is the same for every
            image and every ``seed``.
        val_size: images taken from the 60,000 training images for validation, drawn by ``seed``.
        batch_size: images in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the split and of the order of the training images.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.

    Raises:
        ValueError: if ``seq_len`` is none of the three, or ``val_size`` leaves no image on one
            side.
        FileNotFoundError: when a file is missing and ``download`` is false.

    Example:
        >>> data = PixelMNIST("data/mnist", seq_len=28)
        >>> data.input_size
        28
    """

    def __init__(
        self,
        root: str | Path = "data/mnist",
        seq_len: Literal[28, 392, 784] = 784,
        permute: bool = False,
        val_size: int = 5_000,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
        download: bool = True,
    ) -> None:
        if seq_len not in (28, 392, 784):
            raise ValueError(f"seq_len: expected 28, 392 or 784, got {seq_len}.")
        shape = (seq_len, PIXELS // seq_len)
        super().__init__(shape, root, val_size, batch_size, num_workers, seed, pin_memory, download)
        self.seq_len = seq_len
        self.permute = permute

    @property
    def input_size(self) -> int:
        """Pixels in a step."""
        return PIXELS // self.seq_len

    def _read(self, part: str) -> Batch:
        images, labels = super()._read(part)
        if self.permute:
            images = images[:, torch.randperm(PIXELS, generator=torch.Generator().manual_seed(PERMUTATION_SEED))]
        return images, labels
