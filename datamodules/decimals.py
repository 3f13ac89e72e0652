"""Numbers as data files write them."""

import re

import numpy as np
from numpy.typing import NDArray

LARGEST = float(np.finfo(np.float32).max)
_PLAIN = re.compile(r"[0-9+\-.eE,\s]*").fullmatch
_DECIMAL = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*").fullmatch


def decimals(text: str, separator: str = ",") -> NDArray[np.float64]:
    """Reads decimal numbers that float32 can hold, and nothing else that Python reads as a number.

    Args:
        text: the numbers; spaces around them do not matter.
        separator: what stands between two of them.

    Returns:
        Their values, ``(n,)``, finite.

    Raises:
        ValueError: if one is empty, ``nan``, ``inf``, ``1_000``, in other digits than 0 to 9, or larger than float32.

    Example:
        >>> decimals("1, -.5e1")
        array([ 1., -5.])
        >>> decimals("1, nan")
        Traceback (most recent call last):
        ValueError: 'nan' is no decimal number
    """
    fields = text.split(separator)
    try:
        if not _PLAIN(text):
            raise ValueError
        values = np.array(fields, np.float64)
    except ValueError:
        wrong = next(field for field in fields if not _DECIMAL(field))
        raise ValueError(f"{wrong.strip()[:40]!r} is no decimal number") from None
    large = np.abs(values) > LARGEST
    if large.any():
        raise ValueError(f"{fields[large.argmax()].strip()[:40]} is more than float32 holds")
    return values
