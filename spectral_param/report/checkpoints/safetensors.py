"""Files in the format of safetensors: eight bytes for a length, a header in JSON, the numbers.

The whole of the format is this header, so that no package is needed to read it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param.spectrum.table import escaped

LONGEST = 100_000_000  # bytes of a header, by the format
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}


class Entry(NamedTuple):
    """Where a tensor stands in a file, in bytes from its beginning.

    Attributes:
        shape: of the tensor.
        dtype: of the tensor; ``None`` for one that torch has not.
        begin: its first byte.
        end: the one after its last.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    begin: int
    end: int


def layout_of(path: Path) -> dict[str, Entry]:
    """Reads the header of a file.

    Raises:
        ValueError: if the file is cut, or its header is none, or does not fit the file; it names the file.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(LONGEST, size - 8):
            raise ValueError(f"{path}: expected a header within its {size} bytes, got one of {length}; it is cut.")
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_each_once)
        entries = {name: _entry(name, value, 8 + length) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: expected the header of a safetensors file; {error!r}.") from error
    reached = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if not reached <= entry.begin <= entry.end:
            raise ValueError(f"{path}: expected tensors beside each other, {escaped(name)} lies upon another.")
        if entry.end > size:
            raise ValueError(f"{path}: expected {entry.end} bytes for {escaped(name)}, got {size}; it is cut.")
        if entry.dtype is not None and entry.end - entry.begin != math.prod(entry.shape) * entry.dtype.itemsize:
            raise ValueError(f"{path}: expected as many bytes as {escaped(name)} of {entry.shape} takes.")
        reached = entry.end
    return entries


def read_tensor(path: Path, entry: Entry) -> Tensor:
    """Reads one tensor, into memory of its own.

    Raises:
        ValueError: if the file has become shorter, or torch has no such dtype.
    """
    if entry.dtype is None:
        raise ValueError(f"{path}: expected a dtype that torch has.")
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    numbers = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
    buffer: Any = numbers.numpy()
    with path.open("rb") as file:
        file.seek(entry.begin)
        read = file.readinto(buffer)
    if read != len(numbers):
        raise ValueError(f"{path}: expected {len(numbers)} bytes at {entry.begin}, got {read}; it is cut.")
    return numbers.view(entry.dtype).reshape(entry.shape)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _entry(name: str, value: Any, offset: int) -> Entry:
    shape, (begin, end) = tuple(value["shape"]), value["data_offsets"]
    if not all(isinstance(number, int) and 0 <= number < 2**60 for number in (*shape, begin, end)):
        raise ValueError(f"{name} has a shape or place that is none")
    return Entry(shape, DTYPES.get(value["dtype"]), offset + begin, offset + end)
