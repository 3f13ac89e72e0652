"""MNIST read pixel by pixel, or some pixels at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torchvision
from torch import Tensor

from datamodules.batched import Batch, BatchedDataModule, BatchedDataset
from datamodules.idx import read_idx

PIXELS = 28 * 28
# the task is the same in every run, so the permutation does not follow the run's seed
PERMUTATION_SEED = 0


class PixelMNIST(BatchedDataModule):
    """MNIST as sequences (Section 7.1 of the paper): a digit is read in ``seq_len`` equal steps.

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
        >>> data = PixelMNIST("data", seq_len=28)
        >>> data.input_size
        28
    """

    def __init__(
        self,
        root: str | Path = "data",
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
        super().__init__(batch_size, num_workers, seed, pin_memory)
        self.root = Path(root)
        self.seq_len = seq_len
        self.permute = permute
        self.val_size = val_size
        self.download = download

    @property
    def input_size(self) -> int:
        """Pixels in a step."""
        return PIXELS // self.seq_len

    @property
    def num_classes(self) -> int:
        """The ten digits."""
        return 10

    def prepare_data(self) -> None:
        """Downloads the files that are missing, checked by their MD5 sums."""
        try:
            for part in ("train", "t10k"):
                mnist_files(self.root, part)
        except FileNotFoundError:
            if not self.download:
                raise
            torchvision.datasets.MNIST(self.root, download=True)

    def setup(self, stage: str | None = None) -> None:
        """Reads the training images to fit or validate, the test images to test or predict."""
        if stage in (None, "fit", "validate") and not hasattr(self, "train_set"):
            images, labels = self._read("train")
            if not 0 < self.val_size < len(images):
                raise ValueError(f"val_size: expected from 1 to {len(images) - 1}, got {self.val_size}.")
            order = torch.randperm(len(images), generator=_generator(self.seed))
            val, train = order[: self.val_size], order[self.val_size :]
            self.train_set = PixelSequences(images[train], labels[train], self.seq_len)
            self.val_set = PixelSequences(images[val], labels[val], self.seq_len)
        if stage in (None, "test", "predict") and not hasattr(self, "test_set"):
            self.test_set = PixelSequences(*self._read("t10k"), self.seq_len)

    def _read(self, part: str) -> Batch:
        images, labels = (read_idx(path) for path in mnist_files(self.root, part))
        images = images.flatten(1)
        if self.permute:
            images = images[:, torch.randperm(PIXELS, generator=_generator(PERMUTATION_SEED))]
        return images, labels.long()


class PixelSequences(BatchedDataset):
    """Images kept as bytes, given out as sequences of pixels in [0, 1].

    Args:
        images: shape ``(n, 784)``, uint8.
        labels: shape ``(n,)``, int64.
        seq_len: steps of a sequence, a divisor of 784.
    """

    def __init__(self, images: Tensor, labels: Tensor, seq_len: int) -> None:
        self.images = images
        self.labels = labels
        self.seq_len = seq_len

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the images at ``indices`` as sequences, and their labels."""
        rows = torch.tensor(indices)
        pixels = self.images[rows].reshape(len(rows), self.seq_len, -1)
        return pixels / 255, self.labels[rows]


def mnist_files(root: Path, part: str) -> tuple[Path, Path]:
    """Finds the images and the labels of one part of MNIST.

    Args:
        root: folder that holds ``MNIST/raw``.
        part: "train" or "t10k".

    Returns:
        The two files: the extracted one where it is there, otherwise the ``.gz``.

    Raises:
        FileNotFoundError: if neither is there.
    """
    folder = root / "MNIST" / "raw"
    return _find(folder / f"{part}-images-idx3-ubyte"), _find(folder / f"{part}-labels-idx1-ubyte")


def _find(path: Path) -> Path:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"root: expected MNIST in it, but there is neither {path.absolute()} nor {path.name}.gz.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
