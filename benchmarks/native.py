"""Recurrent layers with the native scan."""

from __future__ import annotations

import tempfile

from benchmarks import recurrent
from benchmarks.table import Table
from spectral_param import native


def measure(quick: bool) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        native.build(folder)
        table = recurrent.measure(quick)
    table.title += ", with the native scan"
    table.note = "As above, after `spectral_param.native.build()`, with W or without."
    return table
