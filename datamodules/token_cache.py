"""What is made of texts once, kept in the cache of Hugging Face ``datasets``."""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Row = dict[str, Any]


def cached(make: Callable[[], Row], *contents: bytes) -> Row:
    """Returns what ``make`` returns, made once for the same contents and read from then on.

    It lies as a memory-mapped Arrow file, ``spectral_param/SHA256.arrow``, in the folder that Hugging Face's
    ``datasets`` keeps its cache in, by default ``~/.cache/huggingface/datasets``; ``HF_DATASETS_CACHE`` or ``HF_HOME``
    name another. A file appears only when it is whole, so any number of processes may ask at once. One that cannot be
    read is made again. Where the folder cannot be written to, nothing is kept.

    Args:
        make: returns integer tensors and lists of strings by name, a function of the contents alone.
        *contents: what is read of files, and whatever else the result depends on.

    Returns:
        The tensors and lists by name; tensors are int64.
    """
    from datasets import Dataset, config  # here, as it takes a second to import

    digest = hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents))
    path = Path(config.HF_DATASETS_CACHE) / "spectral_param" / f"{digest.hexdigest()}.arrow"
    try:
        return Dataset.from_file(str(path)).with_format("torch")[0]
    except Exception:  # not there, or damaged in one of many ways
        row = make()
    with contextlib.suppress(OSError):
        _write(row, path)
    return row


def _write(row: Row, path: Path) -> None:
    from datasets.arrow_writer import ArrowWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as folder:
        part = Path(folder) / path.name
        with ArrowWriter(path=str(part)) as writer:
            writer.write(row)
            writer.finalize()
        part.replace(path)
