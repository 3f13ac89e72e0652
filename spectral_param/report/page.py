"""A page about a run: pictures, weights, settings and versions in one self-contained HTML file."""

from __future__ import annotations

import base64
import html
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectral_param.report.album import draw
from spectral_param.report.run import Run, read_run
from spectral_param.spectrum.statistics import STATISTICS
from spectral_param.spectrum.table import in_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE_NAME = "spectral_report.html"

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
img { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.8rem; }
th, td { padding: 0.25rem 0.5rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: bottom; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def write_report(run: Run, path: str | Path, album: Mapping[str, Figure] | None = None) -> Path:
    """Writes the page about a run, whole or not at all.

    Args:
        run: readings of a run.
        path: the file to write, or to replace; its folder is made where it is missing.
        album: pictures by title; ``None``: those of :func:`~spectral_param.report.album.draw`.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from spectral_param.report.page import Run, write_report
        >>> run = Run(name="demo", sigma={"weight": (np.arange(3.0), np.ones((3, 4)))})
        >>> path = write_report(run, f"{tempfile.mkdtemp()}/page.html")
        >>> path.read_text(encoding="utf-8")[:15]
        '<!DOCTYPE html>'
    """
    return _write(page(run, draw(run) if album is None else album), path)


def write_table(rows: Sequence[Mapping[str, Any]], path: str | Path, title: str) -> Path:
    """Writes a page with one table, whole or not at all.

    Args:
        rows: plain values by heading, the same headings in each.
        path: the file to write, or to replace; its folder is made where it is missing.
        title: of the page.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> from spectral_param.report.page import write_table
        >>> path = write_table([{"weight": "fc", "max": 2.0}], f"{tempfile.mkdtemp()}/page.html", "Singular values")
        >>> "<td>fc</td>" in path.read_text(encoding="utf-8")
        True
    """
    cells = [[value if _is_number(value) else in_cell(name, value) for name, value in row.items()] for row in rows]
    table = _table([name.replace("_", " ") for name in rows[0]], cells)
    return _write(_document(title, f'<div class="wide">{table}</div>\n'), path)


def rebuild(folder: str | Path, path: str | Path | None = None) -> Path:
    """Writes the page about a run that is over, from what the Trainer left in its ``log_dir``.

    Args:
        folder: the ``log_dir``; see :func:`~spectral_param.report.run.read_run` for what is read.
        path: the file to write; ``None``: ``spectral_report.html`` in the folder.

    Returns:
        The path of the page.

    Raises:
        FileNotFoundError: if the folder holds no readings.
        ValueError: if its checkpoint holds more than tensors and plain values.
    """
    return write_report(read_run(folder), path or Path(folder) / FILE_NAME)


def _write(text: str, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")  # so that what stands under the name is always whole
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def page(run: Run, album: Mapping[str, Figure]) -> str:
    """The page as HTML, with nothing that is not in it."""
    title = f"Singular values of {run.name}" if run.name else "Singular values"
    pictures = "".join(_section(name, _image(figure, name)) for name, figure in album.items())
    return _document(
        title,
        _section("Weights at the last reading", _weights(run))
        + pictures
        + _section("Settings", _table(("name", "value"), run.settings.items()))
        + _section("Software", _table(("package", "version"), run.versions.items())),
    )


def _document(title: str, body: str) -> str:
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        f"{body}</body>\n</html>\n"
    )


def _weights(run: Run) -> str:
    headings = ("weight", "shape", "reflectors", "σ map", *(name.replace("_", " ") for name in STATISTICS))
    rows = (
        (
            name,
            "×".join(str(size) for size in weight.get("shape", ())),
            ", ".join(str(count) for count in weight.get("reflectors", ())),
            weight.get("sigma", "plain" if "shape" in weight else "")
            + (f", on images {weight['operator']}" if "operator" in weight else ""),
            *(weight.get(statistic, math.nan) for statistic in STATISTICS),
        )
        for name, weight in run.weights.items()
    )
    return _table(headings, rows)


def _section(title: str, body: str) -> str:
    return f'<section>\n<h2>{html.escape(title)}</h2>\n<div class="wide">{body}</div>\n</section>\n' if body else ""


def _image(figure: Figure, title: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200)
    data = base64.b64encode(buffer.getvalue()).decode()
    width = round(100 * figure.get_figwidth())
    return f'<img alt="{html.escape(title)}" width="{width}" src="data:image/png;base64,{data}">'


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>\n" for row in rows)
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    return f"<table>\n<tr>{head}</tr>\n{body}</table>" if body else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{f"{value:.4g}" if _is_number(value) else ""}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isnan(value)
