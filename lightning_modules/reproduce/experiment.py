"""What a table or figure of the paper is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from lightning_modules.reproduce.learning_rates import Choices
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
        beside: more metrics, a column each.
        draw: draws the results in the paper's layout.
        more_figures: further figures, by what is added to their file's name.
        digits: decimals of the score in the table.
        factor: what the score is multiplied by in the table, 100 for percent.
        paper: the paper's score by (model, setting), as it is printed.
        paper_parameters: the paper's parameter counts in the same way.
        learning_rates: what to choose from on validation with the first seed; empty for the models' own.
        tuned_on: the setting whose learning rates all settings take; None if each is tuned for itself.
        choices: by model, arguments of the task that are chosen in the same way, every one at each learning rate.
        trial_trainer: arguments of the Trainer that the trials have instead of the runs' own, such as fewer epochs.
        seeds: seeds of a run where no other number is asked for.
        notes: lines below the table.
        summary: returns more lines below the table, of the results.
    """

    title: str
    runs: Callable[[bool, int], list[PlannedRun]]
    score: str
    draw: Callable[[Sequence[Result]], Figure]
    other_score: str = ""
    beside: tuple[str, ...] = ()
    more_figures: Mapping[str, Callable[[Sequence[Result]], Figure]] = field(default_factory=dict)
    digits: int = 3
    factor: float = 1.0
    paper: Mapping[tuple[str, str], str] = field(default_factory=dict)
    paper_parameters: Mapping[tuple[str, str], int] = field(default_factory=dict)
    learning_rates: tuple[float, ...] = ()
    tuned_on: str | None = None
    choices: Choices = field(default_factory=dict)
    trial_trainer: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1
    notes: tuple[str, ...] = ()
    summary: Callable[[Sequence[Result]], list[str]] | None = None
