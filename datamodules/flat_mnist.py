"""MNIST as vectors."""

from pathlib import Path

from datamodules.mnist import MNIST, PIXELS


class FlatMNIST(MNIST):
    """MNIST as vectors (Section 7.2 of the paper), for networks that take a digit at once.

    An input has the shape ``(batch, 784)``, float32 in [0, 1], rows after one another; the target of shape
    ``(batch,)``, int64, is the digit. With the original files there are 55,000 training, 5,000 validation and 10,000
    test images.

    Args:
        root: folder with the four files of MNIST in ``MNIST/raw``, extracted or as ``.gz``. Files
            that are there are only read; missing ones are downloaded into it.
        val_size: images taken from the 60,000 training images for validation, drawn by ``seed``.
        batch_size: images in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the split and of the order of the training images.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.

    Raises:
        ValueError: when ``val_size`` leaves no image on one side.
        FileNotFoundError: when a file is missing and ``download`` is false.

    Example:
        >>> FlatMNIST("data/mnist").input_size
        784
    """

    def __init__(
        self,
        root: str | Path = "data/mnist",
        val_size: int = 5_000,
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
        download: bool = True,
    ) -> None:
        super().__init__((PIXELS,), root, val_size, batch_size, num_workers, seed, pin_memory, download)

    @property
    def input_size(self) -> int:
        """Pixels of an image."""
        return PIXELS
