"""The text format of the UCR archive: a series a line, its label first, tab-separated."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.decimals import decimals
from datamodules.files import read_lines


def read_series(path: Path) -> NDArray[np.float64]:
    r"""Reads series of one length, in UTF-8, plain or with the suffix ``.gz``.

    Args:
        path: the file. It is not changed.

    Returns:
        Labels, which are whole numbers, and values, finite in float32: ``(series, 1 + length)``.

    Raises:
        ValueError: if a ``.gz`` is damaged, the text is in another encoding, a row has another length than the first,
            or a label or a value is missing or no number; it names the file and the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "small.tsv"
        >>> _ = path.write_text("1\t0.5\t0.25\n2\t1e-1\t0\n")
        >>> read_series(path)
        array([[1.  , 0.5 , 0.25],
               [2.  , 0.1 , 0.  ]])
    """
    rows: list[NDArray[np.float64]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        if "nan" in line.lower():
            raise ValueError(f"{path}: expected series of one length, got some with values missing, in line {number}.")
        try:
            row = decimals(line, "\t")
        except ValueError as error:
            raise ValueError(
                f"{path}: expected rows of equally many numbers, got in line {number}: {error}."
            ) from error
        if rows and len(row) != len(rows[0]):
            raise ValueError(
                f"{path}: expected rows of equally many numbers, got {len(row)} in line {number}, not {len(rows[0])}."
            )
        if len(row) < 2 or row[0] % 1:
            raise ValueError(
                f"{path}: expected rows of a label and values, tab-separated, the label a whole number, "
                f"got {line[:40]!r} in line {number}."
            )
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: expected rows of a label and values, got none.")
    return np.stack(rows)
