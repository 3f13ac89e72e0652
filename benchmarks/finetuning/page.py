"""The tables of ``docs/finetuning.md``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks.finetuning.runs import METHODS, Line, best_rate, is_of
from benchmarks.finetuning.task import Task

MARK = "<!-- What follows is written by python -m benchmarks.finetuning. -->\n"


def write(page: Path, tasks: Sequence[Task], lines: Sequence[Line]) -> None:
    """Puts the tables in the place of those that the page ends with."""
    before, mark, _ = page.read_text().partition(MARK)
    if not mark:
        raise ValueError(f"{page}: expected the line {MARK.strip()!r}, behind which the tables go, got none.")
    page.write_text(before + mark + "\n" + "\n\n".join("\n".join(table(task, lines)) for task in tasks) + "\n")


def table(task: Task, lines: Sequence[Line]) -> list[str]:
    """Means over the seeds with standard deviations, of test, at the rate that was best on validation."""
    before = [line["before"] for line in lines if line["task"] == task.name]
    rows = [
        f"### {task.name.capitalize()}",
        "",
        (task.__doc__ or "").strip() + (f" Before: {mean(before):.{task.digits}f}." if before else ""),
        "",
        f"| method | numbers trained | {task.score} | rate | s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for method in METHODS[task.name]:
        rate = best_rate(task, method, lines)
        chosen = [line for line in lines if is_of(line, task, method) and line["rate"] == rate]
        if len(chosen) < 2:
            continue
        scores = [line["test"] for line in chosen]
        spread = f"{mean(scores):.{task.digits}f} ± {stdev(scores):.{task.digits}f}"
        seconds = mean(line["seconds"] for line in chosen)
        rows.append(f"| {method.name} | {chosen[0]['numbers']:,} | {spread} | {rate:g} | {seconds:.0f} |")
    versions = sorted({f"{name} {number}" for line in lines for name, number in line["versions"].items()})
    return [*rows, "", f"On the CPU, with {', '.join(versions)}."]
