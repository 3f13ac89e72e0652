"""MNIST: reading its files and splitting them."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torchvision
from torch import Tensor

from datamodules.batched import Batch, BatchedDataModule, BatchedDataset
from datamodules.files import find_file
from datamodules.idx import read_idx

PIXELS = 28 * 28
CLASSES = 10


class MNIST(BatchedDataModule):
    """The digits of MNIST, in a shape that subclasses choose.

    Args:
        shape: shape of one input; its numbers multiply to 784.
        root: folder with the four files of MNIST in ``MNIST/raw``, extracted or as ``.gz``. Files
            that are there are only read; missing ones are downloaded into it.
        val_size: images taken from the 60,000 training images for validation, drawn by ``seed``.
        batch_size: images in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the split and of the order of the training images.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.

    Raises:
        ValueError: when ``val_size`` leaves no image on one side, or files are damaged or do not fit each other.
        FileNotFoundError: when a file is missing and ``download`` is false.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        root: str | Path,
        val_size: int,
        batch_size: int,
        num_workers: int,
        seed: int,
        pin_memory: bool,
        download: bool,
    ) -> None:
        super().__init__(batch_size, num_workers, seed, pin_memory)
        self.shape = shape
        self.root = Path(root)
        self.val_size = val_size
        self.download = download

    @property
    @abstractmethod
    def input_size(self) -> int:
        """Pixels of a step, or of an image that is read at once."""

    @property
    def num_classes(self) -> int:
        """The ten digits."""
        return CLASSES

    def prepare_data(self) -> None:
        """Downloads the files that are missing, checked by their MD5 sums."""
        try:
            for part in ("train", "t10k"):
                mnist_files(self.root, part)
        except FileNotFoundError as missing:
            if not self.download:
                raise
            try:
                download_mnist(self.root)
            except (OSError, RuntimeError) as error:
                raise OSError(f"{missing} It could not be downloaded ({error}).") from error

    def setup(self, stage: str | None = None) -> None:
        """Reads the training images to fit or validate, the test images to test or predict."""
        if stage in (None, "fit", "validate") and not hasattr(self, "train_set"):
            images, labels = self._read("train")
            if not 0 < self.val_size < len(images):
                raise ValueError(f"val_size: expected from 1 to {len(images) - 1}, got {self.val_size}.")
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.seed))
            val, train = order[: self.val_size], order[self.val_size :]
            self.train_set = Digits(images[train], labels[train], self.shape)
            self.val_set = Digits(images[val], labels[val], self.shape)
        if stage in (None, "test", "predict") and not hasattr(self, "test_set"):
            self.test_set = Digits(*self._read("t10k"), self.shape)

    def _read(self, part: str) -> Batch:
        """Images ``(n, 784)``, uint8, and labels ``(n,)``, int64."""
        return read_digits(*mnist_files(self.root, part))


class Digits(BatchedDataset):
    """Images kept as bytes, given out as numbers in [0, 1].

    Args:
        images: shape ``(n, 784)``, uint8.
        labels: shape ``(n,)``, int64.
        shape: shape in which each image is given out.
    """

    def __init__(self, images: Tensor, labels: Tensor, shape: tuple[int, ...]) -> None:
        self.images = images
        self.labels = labels
        self.shape = shape

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Returns the images at ``indices``, and their labels."""
        rows = torch.tensor(indices)
        return self.images[rows].reshape(len(rows), *self.shape) / 255, self.labels[rows]


def read_digits(images_path: Path, labels_path: Path) -> Batch:
    """Reads the images and the labels of one part of MNIST.

    Args:
        images_path: idx file of shape ``(n, 28, 28)``.
        labels_path: idx file of shape ``(n,)``, of the numbers 0 to 9.

    Returns:
        Images ``(n, 784)``, uint8, and labels ``(n,)``, int64.

    Raises:
        ValueError: if a file is damaged, or holds other than that; it names the file.
    """
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (28, 28):
        raise ValueError(f"{images_path}: expected images of shape (n, 28, 28), got {tuple(images.shape)}.")
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"{labels_path}: expected labels of shape ({len(images)},), one for each image of {images_path.name}, "
            f"got {tuple(labels.shape)}; remove both files and try again."
        )
    if labels.max() >= CLASSES:
        raise ValueError(f"{labels_path}: expected labels from 0 to 9, got {labels.max()}; remove it and try again.")
    return images.flatten(1), labels.long()


def download_mnist(root: Path) -> None:
    """Downloads the four files into ``MNIST/raw`` below ``root``, where they appear only when all are whole."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=root) as folder:
        torchvision.datasets.MNIST(folder, download=True)
        for path in (Path(folder) / "MNIST" / "raw").iterdir():
            path.replace(raw / path.name)


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
    images, labels = (find_file(root, f"MNIST/raw/{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
    return images, labels
