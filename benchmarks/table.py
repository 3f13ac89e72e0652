"""What one benchmark finds out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Table:
    """One table of the page.

    Attributes:
        title: its heading.
        note: what was done, in a sentence or two.
        header: names of the columns.
        rows: the cells.
        figures: what the targets are held against, by name.
        curves: milliseconds by size n, for the picture; none: no picture.
    """

    title: str
    note: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Writes the table as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Table:
        """Reads a table that was written."""
        table = cls(**json.loads(path.read_text()))
        table.curves = {name: {int(n): ms for n, ms in curve.items()} for name, curve in table.curves.items()}
        return table

    def point(self, name: str, n: int, seconds: float) -> None:
        """Adds a point to a curve."""
        self.curves.setdefault(name, {})[n] = 1e3 * seconds
