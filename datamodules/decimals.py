"""Numbers as data files write them."""

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LARGEST = float(np.finfo(np.float32).max)


def decimals(fields: Sequence[str]) -> NDArray[np.float64]:
    """Reads decimal numbers that float32 can hold, and nothing else that Python reads as a number.

    Args:
        fields: the numbers; spaces around them do not matter.

    Returns:
        Their values, ``(len(fields),)``, finite.

    Raises:
        ValueError: if one is empty, ``nan``, ``inf``, ``1_000``, in other digits than 0 to 9, or larger than float32.

    Example:
        >>> decimals(["1", " -.5e1"])
        array([ 1., -5.])
        >>> decimals(["1", "nan"])
        Traceback (most recent call last):
        ValueError: 'nan' is no decimal number
    """
    for field in fields:
        if not _DECIMAL(field):
            raise ValueError(f"{field.strip()[:40]!r} is no decimal number")
    values = np.array([float(field) for field in fields], np.float64)
    large = np.abs(values) > LARGEST
    if large.any():
        raise ValueError(f"{fields[large.argmax()].strip()[:40]} is more than float32 holds")
    return values


_DECIMAL = re.compile(r"[ \t]*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*").fullmatch
