"""``spectral-param inspect FILE [OTHER]``: σ of the weights in a checkpoint on the terminal."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spectral_param.report.checkpoints.inspection import WHOLE, compare_files, inspect_file
from spectral_param.spectrum.table import SpectralTable, escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", help=".safetensors, its .index.json, .pt, .bin or .ckpt")
    parser.add_argument("other", nargs="?", help="a later checkpoint to compare with")
    parser.add_argument("--top", type=int, default=10, help="leading singular values (default: 10)")
    parser.add_argument(
        "--whole", type=int, default=WHOLE, help=f"compute all σ up to this shorter side (default: {WHOLE})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with the leading σ of each weight")
    parser.add_argument("--page", help="also write an HTML page to this file")


def inspect(options: argparse.Namespace) -> None:
    """Prints what is asked for.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if one is no checkpoint, or has no weights; for ``--page`` of a comparison.
    """
    if options.other is not None and options.page is not None:
        raise ValueError("--page: expected one file, got two.")
    if options.other is not None:
        rows, passed_over = compare_files(options.file, options.other, top=options.top)
    else:
        rows, passed_over = inspect_file(options.file, top=options.top, whole=options.whole)
    if not rows:
        reasons = "".join(f"\n  {escaped(name)}: {reason}" for name, reason in passed_over.items())
        files = options.file if options.other is None else f"{options.file} and {options.other}"
        raise ValueError(f"{files}: expected matrices, found none to show.{reasons}")
    if options.json:
        print(json.dumps({"weights": [_plain(row) for row in rows], "passed_over": passed_over}, indent=1))
    else:
        print(SpectralTable({name: value for name, value in row.items() if name != "sigma"} for row in rows))
        if options.other is not None:
            print("angles in degrees, between the leading singular vectors before and after")
        for name, reason in passed_over.items():
            print(f"passed over {escaped(name)}: {reason}", file=sys.stderr)
    if options.page is not None:
        print(_write_page(rows, options.file, options.page), file=sys.stderr)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """With null for what is no number, which JSON has not."""
    return {name: _number(value) for name, value in row.items()}


def _number(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_number(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_page(rows: Sequence[dict[str, Any]], file: str, page: str) -> Path:
    from spectral_param.report.page import write_table  # loads matplotlib, which a table does without

    shown = [{name: value for name, value in row.items() if name != "sigma"} for row in rows]
    return write_table(shown, page, f"Singular values of {Path(file).name}")
