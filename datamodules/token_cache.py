"""What is made of texts once, kept in the cache of Hugging Face ``datasets``."""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from datamodules.writing import written
from spectral_param.user_cache import user_cache

Row = dict[str, Any]
SEAL = "sha256"
"""Column that says what the others are made of and hold."""


def cached(make: Callable[[], Row], *contents: bytes) -> Row:
    """Returns what ``make`` returns, made once for the same contents and read from then on.

    It lies as a memory-mapped Arrow file, ``spectral_param/SHA256.arrow``, in the folder that Hugging Face's
    ``datasets`` keeps its cache in, by default ``~/.cache/huggingface/datasets``; ``HF_DATASETS_CACHE`` or ``HF_HOME``
    name another. A folder that is empty or relative, as these make of an ``XDG_CACHE_HOME`` that is, is not taken. A
    file appears only when it is whole, so any number of processes may ask at once. One that cannot be read, or that
    holds anything but what was written for these contents, is made again. Where the folder cannot be written to,
    nothing is kept.

    Args:
        make: returns integer tensors and lists of strings by name, a function of the contents alone.
        *contents: what is read of files, and whatever else the result depends on.

    Returns:
        The tensors and lists by name; tensors are int64.
    """
    from datasets import Dataset  # here, as it takes a second to import

    key = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()
    try:
        path = _folder() / "spectral_param" / f"{key}.arrow"
    except RuntimeError:  # the user has no home folder
        return make()
    with contextlib.suppress(Exception):  # not there, or damaged in one of many ways
        row: Row = Dataset.from_file(str(path)).with_format("torch")[0]
        if row.pop(SEAL) == _seal(key, row):
            return row
    row = make()
    with contextlib.suppress(OSError):
        _write({**row, SEAL: _seal(key, row)}, path)
    return row


def _folder() -> Path:
    from datasets import config

    folder = Path(config.HF_DATASETS_CACHE)
    return folder if folder.is_absolute() else user_cache() / "huggingface" / "datasets"


def _seal(key: str, row: Row) -> str:
    """A checksum of all that a row holds, by what it is made of."""
    digest = hashlib.sha256(key.encode())
    for name, value in sorted(row.items()):
        content = value.long().numpy().tobytes() if isinstance(value, Tensor) else "\0".join(value).encode()
        digest.update(f"\0{name}\0{type(value).__name__}\0{len(value)}\0".encode() + content)
    return digest.hexdigest()


def _write(row: Row, path: Path) -> None:
    from datasets.arrow_writer import ArrowWriter

    with written(path) as place, ArrowWriter(path=str(place)) as writer:
        writer.write(row)
        writer.finalize()
