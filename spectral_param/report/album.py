"""Which pictures a run has, drawn from its readings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spectral_param.report import figures
from spectral_param.report.panels import Band
from spectral_param.report.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

MOST = 6  # weights, and gradients, that are drawn one by one
PER_ROW = 3

T = TypeVar("T")


def draw(run: Run) -> dict[str, Figure]:
    """Draws every picture that a run has readings for.

    Of more than six weights the six with the largest margin at the end are drawn one by one, and all of them in the
    picture of margins by weight.

    Args:
        run: readings of a run.

    Returns:
        Figures by title, in the order to show them.
    """
    album: dict[str, Figure] = {}
    for title, figure in _pictures(_drawn_as_written(run)):
        count = sum(known.startswith(title) for known in album)
        album[f"{title} ({count + 1})" if count else title] = figure
    return album


def _drawn_as_written(run: Run) -> Run:
    """The run with names of which matplotlib makes no formula, as of dollar signs, and hides none, as of a first _."""

    def written(readings: dict[str, T]) -> dict[str, T]:
        return {re.sub("^_", " _", name).replace("$", r"\$"): reading for name, reading in readings.items()}

    return replace(
        run,
        sigma=written(run.sigma),
        margins=written(run.margins),
        weights=written(run.weights),
        gradients=written(run.gradients),
        norms=written(run.norms),
    )


def _pictures(run: Run) -> Iterator[tuple[str, Figure]]:
    last = {name: margin[-1] for name, (_, margin) in run.margins.items()}
    worst = sorted(last, key=lambda name: math.inf if math.isnan(last[name]) else last[name], reverse=True)[:MOST]
    curves = _curves(run, worst)
    if curves:
        radii = {(high - low) / 2 for name, (low, high) in _bands(run).items() if name in worst}
        radius = radii.pop() if len(radii) == 1 else None
        yield "Margin, gradient and loss", figures.margin_gradient_loss_figure(curves, radius, gradient_label="norm")
    through_time = {name: reading for name, reading in run.gradients.items() if len(reading[1]) > 1}
    for names in _rows(list(through_time)[:MOST]):
        yield "Gradients through time", figures.gradient_heatmap_figure({name: through_time[name] for name in names})
    watched = [name for name in worst if name in run.sigma]
    for names in _rows(watched):
        chosen = {name: run.sigma[name] for name in names}
        yield "Distribution of singular values", figures.sigma_ridgeline_figure(chosen, _bands(run, names))
        yield "Every singular value", figures.sigma_lines_figure(chosen, _bands(run, names))
    if len(run.margins) > 1:
        yield "Margin by weight", figures.margin_heatmap_figure(_by_steps(run))
    for name, (low, high) in _bands(run, watched).items():
        yield "At the edges of the band", figures.saturation_figure(*run.sigma[name], low, high, title=name)


def _curves(run: Run, weights: list[str]) -> dict[str, dict[str, figures.Curve]]:
    """Margins, gradients at the first time and elsewhere, and the loss, each a curve of its own."""
    curves: dict[str, dict[str, figures.Curve]] = {name: {"margin": run.margins[name]} for name in weights}
    for name, (steps, times, norms) in list(run.gradients.items())[:MOST]:
        curves[f"{name}, t = {times[0]:g}"] = {"gradient": (steps, norms[:, 0])}
    for name, norm in list(run.norms.items())[:MOST]:
        curves.setdefault(name, {})["gradient"] = norm
    if run.loss is not None:
        curves["loss"] = {"loss": run.loss}
    return curves


def _bands(run: Run, names: list[str] | None = None) -> dict[str, Band]:
    """The finite ranges of σ maps, by weight."""
    chosen = {name: run.weights.get(name, {}) for name in (run.weights if names is None else names)}
    ranges = {name: (weight.get("low", -math.inf), weight.get("high", math.inf)) for name, weight in chosen.items()}
    return {name: (low, high) for name, (low, high) in ranges.items() if math.isfinite(high - low) and low < high}


def _by_steps(run: Run) -> dict[str, tuple[ArrayLike, dict[str, ArrayLike]]]:
    """Margins in groups that were read at the same steps."""
    groups: dict[tuple[float, ...], dict[str, ArrayLike]] = {}
    for name, (steps, margin) in run.margins.items():
        groups.setdefault(tuple(steps), {})[name] = margin
    return {f"{len(steps)} readings": (steps, margins) for steps, margins in groups.items()}


def _rows(names: list[str]) -> list[list[str]]:
    return [names[i : i + PER_ROW] for i in range(0, len(names), PER_ROW)]
