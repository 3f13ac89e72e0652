"""``python -m benchmarks.learning_rates``: trains what has no line yet and writes ``docs/learning_rates.md``."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch

from benchmarks.learning_rates import runs
from benchmarks.learning_rates.page import write

ROOT = Path(__file__).parents[2]
TABLES = ("programs", "widths")


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_rates", description=__doc__)
    parser.add_argument("tables", nargs="*", help=f"which tables, of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="folder with mnist and ptb")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder of the lines")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "learning_rates.md", help="the page")
    options = parser.parse_args()
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"tables: expected some of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}.")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # zeros of dead units would be slow
    warnings.simplefilter("ignore")  # of weights that change, as they are meant to
    for table in options.tables or TABLES:
        path = options.results / f"{table}.jsonl"
        done = runs.read(path)
        for run in runs.planned(table):
            if run not in done:
                print(*run, flush=True)
                runs.carry_out(run, path, options.data)
    write(options.page, options.results)
    print(options.page)


if __name__ == "__main__":
    main()
