"""The arff format as MULAN writes it: a line for each attribute, then rows, dense or sparse."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from datamodules.decimals import decimals
from datamodules.files import read_lines

Lines = Iterator[tuple[int, str]]
_ATTRIBUTE = re.compile(r"""@attribute\s+('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"]\S*)\s+(\S.*)""", re.IGNORECASE)
_QUOTED = re.compile(r"""(['"])([^'",{}]*)\1""")


class Attribute(NamedTuple):
    """A column: its name, and the numbers that are allowed in it, or none for all."""

    name: str
    values: tuple[float, ...] = ()


def read_arff(path: Path) -> tuple[list[str], NDArray[np.float32]]:
    r"""Reads an arff file of numbers in UTF-8, plain or with the suffix ``.gz``.

    A row lists all values, or is sparse, ``{3 1, 17 0.5}``: column numbers from 0 with their values. All others are 0,
    or the first of the values where an attribute lists them in braces.

    Args:
        path: the file. It is not changed.

    Returns:
        The names of the attributes, and the values, finite float32 ``(rows, attributes)``.

    Raises:
        ValueError: if a ``.gz`` is damaged, the text is in another encoding, an attribute is not one of numbers or is
            there twice, there are no attributes or rows, or a row does not fit the attributes; it names the file and
            the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "small.arff"
        >>> _ = path.write_text("@relation r\n@attribute a numeric\n@attribute 'b c' {0,1}\n@data\n{1 1}\n2,0\n")
        >>> read_arff(path)
        (['a', 'b c'], array([[0., 1.],
               [2., 0.]], dtype=float32))
    """
    lines = ((number, text) for number, line in enumerate(read_lines(path), start=1) if (text := line.strip()))
    lines = ((number, text) for number, text in lines if not text.startswith("%"))
    attributes = _header(lines, path)
    rows = list(lines)
    if not attributes or not rows:
        raise ValueError(
            f"{path}: expected attributes and rows after @data, got {len(attributes)} and {len(rows)}; "
            "if it was cut short, remove it and try again."
        )
    usual = np.array([values[0] if values else 0.0 for _, values in attributes])
    table = np.empty((len(rows), len(attributes)), np.float32)
    for row, (number, text) in zip(table, rows, strict=True):
        try:
            row[:] = _sparse(text, usual) if text.startswith("{") else _dense(text, len(attributes))
        except ValueError as error:
            raise ValueError(
                f"{path}, line {number}: expected a row of {len(attributes)} numbers, got {text[:40]!r} ({error})."
            ) from error
    _check_values(table, attributes, [number for number, _ in rows], path)
    return [name for name, _ in attributes], table


def _header(lines: Lines, path: Path) -> list[Attribute]:
    """All attributes before the line ``@data``."""
    attributes: dict[str, Attribute] = {}
    for number, text in lines:
        if text.lower() == "@data":
            break
        keyword = text.split(maxsplit=1)[0].lower()
        if keyword == "@attribute":
            try:
                attribute = _attribute(text)
                if attribute.name in attributes:
                    raise ValueError("the name is there twice")
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: expected @attribute, a name of its own, and numeric or numbers in braces, "
                    f"got {text[:40]!r} ({error})."
                ) from error
            attributes[attribute.name] = attribute
        elif keyword != "@relation":
            raise ValueError(f"{path}: expected attributes and rows after @data, got {text[:40]!r} in line {number}.")
    return list(attributes.values())


def _attribute(text: str) -> Attribute:
    found = _ATTRIBUTE.fullmatch(text)
    if found is None:
        raise ValueError("a name and a kind are missing")
    name, kind = found.groups()
    if name[0] in "'\"":
        name = re.sub(r"\\(.)", r"\1", name[1:-1])
    if kind.startswith("{") and kind.endswith("}"):
        return Attribute(name, tuple(decimals(_QUOTED.sub(r"\2", kind[1:-1]))))
    if kind.split()[0].lower() not in ("numeric", "real", "integer"):
        raise ValueError("it is not one of numbers")
    return Attribute(name)


def _dense(text: str, count: int) -> NDArray[np.float64]:
    values = decimals(_QUOTED.sub(r"\2", text))
    if len(values) != count:
        raise ValueError(f"there are {len(values)}")
    return values


def _sparse(text: str, usual: NDArray[np.float64]) -> NDArray[np.float64]:
    if not text.endswith("}"):
        raise ValueError("it does not end")
    row = usual.copy()
    entries = [entry.split() for entry in _QUOTED.sub(r"\2", text[1:-1]).split(",")]
    if entries == [[]]:
        return row
    if any(len(entry) != 2 for entry in entries):
        raise ValueError("an entry is not a column and a value")
    columns, values = zip(*entries, strict=True)
    for column in columns:
        if not (column.isascii() and column.isdigit() and int(column) < len(row)):
            raise ValueError(f"column {column} is not one of 0 to {len(row) - 1}")
    places = [int(column) for column in columns]
    if len(set(places)) < len(places):
        raise ValueError("a column is there twice")
    row[places] = decimals(",".join(values))
    return row


def _check_values(table: NDArray[np.float32], attributes: list[Attribute], numbers: list[int], path: Path) -> None:
    """Raises ``ValueError`` for a value that is not one of those in its attribute's braces."""
    for values in {attribute.values for attribute in attributes if attribute.values}:
        columns = np.array([i for i, attribute in enumerate(attributes) if attribute.values == values])
        wrong = np.argwhere(~np.isin(table[:, columns], np.array(values, np.float32)))
        if len(wrong):
            row, column = wrong[0][0], columns[wrong[0][1]]
            raise ValueError(
                f"{path}: expected labels {' and '.join(f'{value:g}' for value in values)}, got others: "
                f"{attributes[column].name!r} is {table[row, column]:g} in line {numbers[row]}."
            )
