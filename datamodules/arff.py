"""The arff format as MULAN writes it: a line for each attribute, then rows, dense or sparse."""

from pathlib import Path

import numpy as np

from datamodules.files import read_file


def read_arff(path: Path) -> tuple[list[str], np.ndarray]:
    r"""Reads an arff file of numbers, plain or with the suffix ``.gz``.

    A row lists all values, or is sparse, ``{3 1, 17 0.5}``: column numbers from 0 with their values, all others 0.

    Args:
        path: the file. It is not changed.

    Returns:
        The names of the attributes, and the values, float32 ``(rows, attributes)``.

    Raises:
        ValueError: if a ``.gz`` is damaged, there are no attributes or rows, or a row does not fit the attributes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "small.arff"
        >>> _ = path.write_text("@relation r\n@attribute a numeric\n@attribute 'b c' {0,1}\n@data\n{1 1}\n2,0\n")
        >>> read_arff(path)
        (['a', 'b c'], array([[0., 1.],
               [2., 0.]], dtype=float32))
    """
    names: list[str] = []
    lines = enumerate(read_file(path).decode("utf8").splitlines(), start=1)
    for _, line in lines:
        keyword = line.strip().lower()
        if keyword.startswith("@attribute"):
            names.append(_name(line.split(maxsplit=1)[1].strip()))
        elif keyword.startswith("@data"):
            break
    rows = [(number, text) for number, line in lines if (text := line.strip()) and not text.startswith("%")]
    if not names or not rows:
        raise ValueError(f"{path}: expected attributes and rows, got {len(names)} and {len(rows)}.")

    values = np.zeros((len(rows), len(names)), np.float32)
    for row, (number, text) in zip(values, rows, strict=True):
        try:
            _fill(row, text)
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{path}, line {number}: expected a row of {len(names)} numbers, got {text[:40]!r} ({error})."
            ) from error
    return names, values


def _fill(row: np.ndarray, text: str) -> None:
    if text.startswith("{"):
        if not text.endswith("}"):
            raise ValueError("it does not end")
        for entry in filter(None, text[1:-1].split(",")):
            column, value = entry.split()
            if int(column) < 0:
                raise IndexError(f"column {column}")
            row[int(column)] = float(value)
    else:
        row[:] = np.array(text.split(","), np.float32)


def _name(declaration: str) -> str:
    """The name that an attribute's declaration begins with, quoted if it has spaces."""
    if declaration[0] in "'\"":
        return declaration[1:].split(declaration[0])[0]
    return declaration.split()[0]
