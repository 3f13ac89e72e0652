"""The idx format, in which MNIST is distributed."""

import math
from pathlib import Path

import torch
from torch import Tensor

from datamodules.files import read_file

UNSIGNED_BYTE = 8


def read_idx(path: Path) -> Tensor:
    """Reads an idx file of unsigned bytes, plain or with the suffix ``.gz``.

    The file begins with two zero bytes, the code of the type, the number of dimensions, and the
    dimensions as big-endian 32-bit integers.

    Args:
        path: the file. It is not changed.

    Returns:
        A uint8 tensor of the dimensions that the file states.

    Raises:
        ValueError: if the file is cut short, damaged, holds anything but unsigned bytes, or nothing.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two-by-two"
        >>> _ = path.write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3, 4]))
        >>> read_idx(path)
        tensor([[1, 2],
                [3, 4]], dtype=torch.uint8)
    """
    content = read_file(path)
    if len(content) < 4 or content[:3] != bytes([0, 0, UNSIGNED_BYTE]):
        raise ValueError(f"{path}: expected an idx file of unsigned bytes, got one that begins {content[:4].hex()}.")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4)]
    if len(content) < start or not shape or not all(shape):
        raise ValueError(
            f"{path}: expected entries in each dimension, got {len(content)} bytes of shape {tuple(shape)}."
        )
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path}: expected {math.prod(shape)} bytes of shape {tuple(shape)}, "
            f"got {len(content) - start}; remove it and try again."
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(shape)
