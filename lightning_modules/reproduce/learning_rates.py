"""Learning rates, chosen on validation with one seed before the others are trained."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result


def at_rate(run: PlannedRun, rate: float) -> PlannedRun:
    """Returns the run with another learning rate."""
    name, arguments = run.task
    return replace(run, task=(name, {**arguments, "learning_rate": rate}))


def trials(runs: Sequence[PlannedRun], rates: Sequence[float], setting: str | None) -> list[PlannedRun]:
    """Returns the runs of the first seed at each learning rate.

    Args:
        runs: the grid.
        rates: the learning rates to choose from.
        setting: the setting that decides for all; None if each decides for itself.
    """
    seed = min((run.seed for run in runs), default=0)
    chosen = [run for run in runs if run.seed == seed and setting in (None, run.setting)]
    return [at_rate(run, rate) for run in chosen for rate in rates]


def at_best_rates(
    runs: Sequence[PlannedRun], tried: Iterable[tuple[PlannedRun, Result | None]], setting: str | None
) -> list[PlannedRun]:
    """Returns the runs at the learning rates that were best on validation.

    Args:
        runs: the grid.
        tried: the trials, with None where one has not finished.
        setting: the setting that decided for all; None if each decides for itself.

    Returns:
        The runs for which all trials have finished.
    """
    found: dict[tuple[str, str], list[Result | None]] = defaultdict(list)
    for run, result in tried:
        found[run.model, run.setting].append(result)
    modes = {run.model: run.mode for run in runs}
    rates = {
        key: min(finished, key=partial(_order, modes[key[0]])).learning_rate
        for key, results in found.items()
        if len(finished := [result for result in results if result is not None]) == len(results)
    }
    keyed = [(run, (run.model, setting or run.setting)) for run in runs]
    return [at_rate(run, rates[key]) for run, key in keyed if key in rates]


def _order(mode: str, result: Result) -> tuple[float, float]:
    """The best epoch, and where epochs are equal, as accuracies of few series are, the loss; NaN last."""
    best = -result.best if mode == "max" else result.best
    return (math.inf if math.isnan(best) else best, math.inf if math.isnan(result.least_loss) else result.least_loss)
