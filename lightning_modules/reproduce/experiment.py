"""What a table or figure of the paper is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result


@dataclass(frozen=True)
class Experiment:
    """A grid of models and settings, the paper's numbers for it, and how to draw it.

    Args:
        title: heading of the report.
        runs: returns the runs of one seed, in the order of the report; of a small version if asked for.
        score: the metric of the table.
        other_score: the metric of settings that lack the former.
        draw: draws the results in the paper's layout.
        digits: decimals of the score in the table.
        factor: what the score is multiplied by in the table, 100 for percent.
        paper: the paper's score by (model, setting), as it is printed.
        paper_parameters: the paper's parameter counts in the same way.
        learning_rates: what to choose from on validation with the first seed; empty for the models' own.
        tuned_on: the setting whose learning rates all settings take; None if each is tuned for itself.
        seeds: seeds of a run where no other number is asked for.
        notes: lines below the table.
    """

    title: str
    runs: Callable[[bool, int], list[PlannedRun]]
    score: str
    draw: Callable[[Sequence[Result]], Figure]
    other_score: str = ""
    digits: int = 3
    factor: float = 1.0
    paper: Mapping[tuple[str, str], str] = field(default_factory=dict)
    paper_parameters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    learning_rates: tuple[float, ...] = ()
    tuned_on: str | None = None
    seeds: int = 1
    notes: tuple[str, ...] = ()
