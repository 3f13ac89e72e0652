"""Learning rates, and what else is chosen, on validation with one seed before the others are trained."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result

Choices = Mapping[str, Sequence[dict[str, Any]]]
"""By model, what is tried beside the learning rates: arguments of the task."""


def at_rate(run: PlannedRun, rate: float) -> PlannedRun:
    """Returns the run with another learning rate."""
    return _with(run, {"learning_rate": rate})


def trials(
    runs: Sequence[PlannedRun],
    rates: Sequence[float],
    setting: str | None,
    choices: Choices | None = None,
    trainer: Mapping[str, Any] | None = None,
) -> list[PlannedRun]:
    """Returns the runs of the first seed at each learning rate.

    Args:
        runs: the grid.
        rates: the learning rates to choose from.
        setting: the setting that decides for all; None if each decides for itself.
        choices: what else is chosen, by model, every one at each rate.
        trainer: arguments of the Trainer that the trials have instead of the run's own, such as fewer epochs.
    """
    seed = min((run.seed for run in runs), default=0)
    chosen = [run for run in runs if run.seed == seed and setting in (None, run.setting)]
    return [
        replace(_with(run, {**choice, "learning_rate": rate}), trainer={**run.trainer, **(trainer or {})})
        for run in chosen
        for choice in (choices or {}).get(run.model, ({},))
        for rate in rates
    ]


def at_best_rates(
    runs: Sequence[PlannedRun],
    tried: Iterable[tuple[PlannedRun, Result | None]],
    setting: str | None,
    choices: Choices | None = None,
) -> list[PlannedRun]:
    """Returns the runs at the learning rates, and with what else was chosen, that were best on validation.

    Args:
        runs: the grid.
        tried: the trials, with None where one has not finished.
        setting: the setting that decided for all; None if each decides for itself.
        choices: what else was chosen, as in :func:`trials`.

    Returns:
        The runs for which all trials have finished.
    """
    found: dict[tuple[str, str], list[tuple[PlannedRun, Result | None]]] = defaultdict(list)
    for trial in tried:
        found[trial[0].model, trial[0].setting].append(trial)
    modes = {run.model: run.mode for run in runs}
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for key, pairs in found.items():
        finished = [(run, result) for run, result in pairs if result is not None]
        if len(finished) == len(pairs):
            order = [_order(modes[key[0]], result) for _, result in finished]
            arguments = finished[order.index(min(order))][0].task[1]
            names = {"learning_rate", *(name for choice in (choices or {}).get(key[0], ()) for name in choice)}
            best[key] = {name: arguments[name] for name in names}
    keyed = [(run, (run.model, setting or run.setting)) for run in runs]
    return [_with(run, best[key]) for run, key in keyed if key in best]


def _with(run: PlannedRun, arguments: dict[str, Any]) -> PlannedRun:
    name, own = run.task
    return replace(run, task=(name, {**own, **arguments}))


def _order(mode: str, result: Result) -> tuple[float, float]:
    """The best epoch, and where epochs are equal, as accuracies of few series are, the loss; NaN last."""
    best = -result.best if mode == "max" else result.best
    return (math.inf if math.isnan(best) else best, math.inf if math.isnan(result.least_loss) else result.least_loss)
