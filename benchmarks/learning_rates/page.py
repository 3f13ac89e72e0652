"""``docs/learning_rates.md``, of the lines that are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.learning_rates.programs import PROGRAMS
from benchmarks.learning_rates.runs import GRID, OPTIMIZERS, SEEDS, WIDTHS, Run, read
from benchmarks.learning_rates.training import FORMS

AT_MOST, APART = 1.02, 2.0
"""What a registered model's loss may be of the plain one's, and how far apart the best rates may lie."""
NAMES = {"adam": "Adam", "sgd": "SGD with momentum 0.9"}
_HEAD = """\
# Learning rates

Whether a registered model trains as the plain one does at the plain one's learning rate, with
`parameter_groups(model, lr=…)`. Written by `python -m benchmarks.learning_rates --data FOLDER`, which trains what has
no line yet in [`results/programs.jsonl`](../results/programs.jsonl) or
[`results/widths.jsonl`](../results/widths.jsonl) (MNIST in `FOLDER/mnist`, the Penn Treebank, read as letters, in
`FOLDER/ptb`). The rule is derived in Notes [Rates] and [Lengths] of `spectral_param/parametrization/step_rates.py` and
`spectral_param/spectrum/reflector_lengths.py`. Two of its constants, how far a free σ moves and what it has under SGD,
are measured: on programs below, with other seeds. So the programs are no others than those that the rule was looked at
with: all was trained anew with 2 in the place of 1.5, and with more under SGD, before these numbers; that reflectors
grow with σ was found on the MLP of 64. Queries, keys and values of the Llama and the Mixtral are apart, as in theirs,
since stacked ones did worse; the text transformers have one block, for time. The grid of widths ends where it ends for
time, too: at 100 steps the plain networks may want still higher rates, and with one seed neighbours are often equal.
"all": every reflector, from the plain start. "16": 16 reflectors at most, `init="orthogonal"`, so from another start,
with σ = 1. A loss is the mean over the last tenth of the steps of training.
"""


def write(path: Path, results: Path) -> None:
    """Writes the page.

    Args:
        path: of the page.
        results: folder of the lines.
    """
    programs, widths = read(results / "programs.jsonl"), read(results / "widths.jsonl")
    lines = [_HEAD, "## Ten programs", "", *_programs(programs), "", "## Three widths", "", *_widths(widths)]
    path.write_text("\n".join(lines) + "\n")


def _programs(found: dict[Run, float]) -> list[str]:
    """The loss of each plain program, and those of the registered ones by it."""
    header = ["program", "seeds", *(f"{NAMES[o].split()[0]}: {form}" for o in OPTIMIZERS for form in ("rate", *FORMS))]
    rows, kept = [], {(optimizer, form): 0 for optimizer in OPTIMIZERS for form in FORMS if form != "plain"}
    for name, program in PROGRAMS.items():
        plans = {(o, form): Run(name, form, o, program.rates[o], 0) for o in OPTIMIZERS for form in FORMS}
        seeds = [seed for seed in SEEDS if all(run._replace(seed=seed) in found for run in plans.values())]
        losses = {key: _mean(found[run._replace(seed=seed)] for seed in seeds) for key, run in plans.items()}
        cells = [name, str(len(seeds))]
        for optimizer in OPTIMIZERS:
            plain = losses[optimizer, "plain"]
            cells += [f"{program.rates[optimizer]:g}", f"{plain:.3g}"]
            for form in list(FORMS)[1:]:
                ratio = losses[optimizer, form] / plain
                kept[optimizer, form] += ratio <= AT_MOST
                cells.append(f"**{ratio:.3f}**" if ratio > AT_MOST else f"{ratio:.3f}")
        if seeds:
            rows.append(cells)
    counts = "; ".join(f"{NAMES[o].split()[0]}, {form}: {count} of {len(rows)}" for (o, form), count in kept.items())
    return [
        "The plain loss, and the registered one by it, each the mean over the seeds. To be reached: at most "
        f"{AT_MOST} in nine of ten; above it in bold. Reached by {counts}.",
        "",
        *_table(header, rows),
    ]


def _widths(found: dict[Run, float]) -> list[str]:
    """The loss at each learning rate, and how far the best ones lie apart."""
    lines = [
        "MLP 784-n-n-10 on MNIST, 100 steps, one seed, learning rates an octave apart. To be reached: the best rate of "
        f"the registered one within a factor of {APART:g} of the plain one's. The best in bold."
    ]
    for optimizer in OPTIMIZERS:
        rows = []
        for width in WIDTHS:
            best_plain = math.nan
            for form in FORMS:
                runs = [Run(f"MLP {width}", form, optimizer, lr, 0) for lr in GRID[optimizer]]
                losses = [found.get(run, math.nan) for run in runs]
                known = [loss for loss in losses if not math.isnan(loss)]
                best = GRID[optimizer][losses.index(min(known))] if known else math.nan
                best_plain = best if form == "plain" else best_plain
                apart = max(best / best_plain, best_plain / best)
                verdict = "" if form == "plain" or math.isnan(apart) else "reached" if apart <= APART else "missed"
                pairs = zip(GRID[optimizer], losses, strict=True)
                if not known:
                    continue
                cells = [f"**{loss:.3f}**" if rate == best else f"{loss:.3f}" for rate, loss in pairs]
                rows.append([str(width), form, *cells, verdict])
        lines += [
            "",
            f"{NAMES[optimizer]}:",
            "",
            *_table(["n", "", *(f"{rate:g}" for rate in GRID[optimizer]), ""], rows),
        ]
    return lines


def _mean(losses: Iterable[float]) -> float:
    losses = list(losses)
    return sum(losses) / len(losses) if losses else math.nan


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows)]
