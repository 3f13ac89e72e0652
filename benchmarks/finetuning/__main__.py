"""``python -m benchmarks.finetuning``: ours beside peft's LoRA, HRA and OFT, at matched numbers of trained parameters.

A run that has a line in ``results/finetuning.jsonl`` is not trained again; with all of them there the tables of
``docs/finetuning.md`` are written and nothing else is done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.finetuning.digits import Digits
from benchmarks.finetuning.page import write
from benchmarks.finetuning.runs import add, read, run, runs_left, trained_base
from benchmarks.finetuning.text import Text

ROOT = Path(__file__).parents[2]
TASKS = {task.name: task for task in (Digits, Text)}


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.finetuning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tasks", nargs="*", help=f"some of {', '.join(TASKS)} (default: all)")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with mnist, wikitext-2 and ptb")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "finetuning.md", help="whose tables are written")
    options = parser.parse_args()
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"tasks: expected some of {', '.join(TASKS)}, got {', '.join(sorted(unknown))}.")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    path = options.results / "finetuning.jsonl"
    tasks = [TASKS[name](options.data) for name in options.tasks or TASKS]
    for task in tasks:
        while (left := next(runs_left(task, read(path)), None)) is not None:
            line = run(task, trained_base(task, options.results / "finetuning"), *left)
            add(path, line)
            print(f"{line['name']}: {line['val']} on validation, {line['seconds']} s", flush=True)
    write(options.page, [task(options.data) for task in TASKS.values()], read(path))
    print(options.page)


if __name__ == "__main__":
    main()
