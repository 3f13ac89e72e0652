"""``python -m benchmarks``: measures every table in a process of its own and writes ``docs/performance.md``."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Table

KEEP = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
TABLES = {
    "weight": ("weight", {}),
    "layer": ("layer", {}),
    "recurrent": ("recurrent", {}),
    "kept": ("recurrent", KEEP),
    "compiled": ("compiled", {}),
    "native": ("native", {}),
    "deep": ("deep", {}),
    "vision": ("vision", {}),
    "registering": ("registering", {}),
    "native-weights": ("native_weights", {}),
    "threads": ("threads", {}),
    "overhead": ("overhead", {}),
    "many-reads": ("many_reads", {}),
    "memory": ("memory", {}),
    "frozen-base": ("frozen_base", {}),
}
DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"which tables, of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes and few repeats, for a look")
    parser.add_argument("--output", type=Path, default=DOCS, help="folder of the page and its pictures")
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)  # the one table of this process
    options = parser.parse_args()
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"tables: expected some of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}.")
    if options.save:
        import torch

        torch.set_flush_denormal(True)  # vanishing gradients would time how a processor takes the smallest numbers
        module, _ = TABLES[options.tables[0]]
        importlib.import_module(f"benchmarks.{module}").measure(options.quick).save(options.save)
        return
    from benchmarks.page import write

    tables = {name: _in_own_process(name, options.quick) for name in options.tables or TABLES}
    if "kept" in tables:
        tables["kept"].title += ", memory kept"
    print(write(tables, options.output))


def _in_own_process(name: str, quick: bool) -> Table:
    print(f"{name} …", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        command = [sys.executable, "-m", "benchmarks", name, "--save", str(path), *(["--quick"] if quick else [])]
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | TABLES[name][1]
        subprocess.run(command, check=True, env=environment, cwd=DOCS.parent)
        return Table.load(path)


if __name__ == "__main__":
    main()
