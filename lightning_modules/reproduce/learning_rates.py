"""Learning rates, chosen on validation with one seed before the others are trained."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from lightning_modules.reproduce.planned_run import GridCell
from lightning_modules.reproduce.results import Result


def at_rate(cell: GridCell, rate: float) -> GridCell:
    """Returns the cell with another learning rate."""
    name, arguments = cell.task
    return replace(cell, task=(name, {**arguments, "learning_rate": rate}))


def trials(cells: Sequence[GridCell], rates: Sequence[float], setting: str | None) -> list[GridCell]:
    """Returns the cells of the first seed at each learning rate.

    Args:
        cells: the grid.
        rates: the learning rates to choose from.
        setting: the setting that decides for all; None if each decides for itself.
    """
    seed = min((cell.seed for cell in cells), default=0)
    chosen = [cell for cell in cells if cell.seed == seed and setting in (None, cell.setting)]
    return [at_rate(cell, rate) for cell in chosen for rate in rates]


def at_best_rates(
    cells: Sequence[GridCell], tried: Iterable[tuple[GridCell, Result | None]], setting: str | None
) -> list[GridCell]:
    """Returns the cells at the learning rates that were best on validation.

    Args:
        cells: the grid.
        tried: the trials, with None where one has not finished.
        setting: the setting that decided for all; None if each decides for itself.

    Returns:
        The cells for which all trials have finished.
    """
    found: dict[tuple[str, str], list[Result | None]] = defaultdict(list)
    for cell, result in tried:
        found[cell.model, cell.setting].append(result)
    modes = {cell.model: cell.mode for cell in cells}
    rates = {
        key: min(finished, key=partial(_order, modes[key[0]])).learning_rate
        for key, results in found.items()
        if len(finished := [result for result in results if result is not None]) == len(results)
    }
    keyed = [(cell, (cell.model, setting or cell.setting)) for cell in cells]
    return [at_rate(cell, rates[key]) for cell, key in keyed if key in rates]


def _order(mode: str, result: Result) -> tuple[float, float]:
    """The best epoch, and where epochs are equal, as accuracies of few series are, the loss; NaN last."""
    best = -result.best if mode == "max" else result.best
    return (math.inf if math.isnan(best) else best, math.inf if math.isnan(result.least_loss) else result.least_loss)
