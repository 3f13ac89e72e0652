"""``docs/performance.md`` and its pictures."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import matplotlib
import torch

from benchmarks.race import gemm_rate
from benchmarks.table import Table
from benchmarks.targets import held_against

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # after the choice of a backend without a screen


def write(tables: Mapping[str, Table], folder: Path) -> Path:
    """Writes the page, and a log–log picture of each table that has curves."""
    folder.mkdir(exist_ok=True)
    lines = [
        "# Performance",
        "",
        f"Measured by `python -m benchmarks` with torch {torch.__version__} on {_processor()}, one thread, processor "
        f"time of that thread, candidates side by side in random order, medians, the smallest numbers taken for zero "
        f"(`torch.set_flush_denormal(True)`). `torch.mm` in float32: {gemm_rate() / 1e9:.0f} GF/s. All tables are of "
        "one run on this processor.",
        "",
        "## Figures to reach",
        "",
        *held_against(tables),
    ]
    for name, table in tables.items():
        lines += ["", f"## {table.title}", "", table.note, "", _row(table.header), _row(["---"] * len(table.header))]
        lines += [_row(row) for row in table.rows]
        if table.curves:
            _draw(table, folder / f"performance_{name}.png")
            lines += ["", f"![{table.title}: milliseconds against n](performance_{name}.png)"]
    page = folder / "performance.md"
    page.write_text("\n".join(lines) + "\n")
    return page


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return f"{model} ({os.cpu_count()} cores)"


def _draw(table: Table, path: Path) -> None:
    """Milliseconds against n, with the slope between the two largest sizes."""
    figure, axes = plt.subplots(figsize=(8.0, 4.2), dpi=100)
    for name, curve in table.curves.items():
        sizes = sorted(curve)
        times = [curve[n] for n in sizes]
        slope = ""
        if len(sizes) > 1:
            rise = math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2])
            slope = f", n^{rise:.1f}"
        plain = name.startswith("nn.")
        style = {"color": "black", "linewidth": 2.5, "linestyle": "--"} if plain else {"marker": "o"}
        axes.loglog(sizes, times, label=name + slope, **style)
    every = sorted({n for curve in table.curves.values() for n in curve})
    axes.set_xticks(every, [str(n) for n in every])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("n")
    axes.set_ylabel("ms")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
