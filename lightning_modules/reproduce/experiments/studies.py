"""What the radius of the band, the number of reflectors and their lengths do, which the paper leaves open."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lightning_modules.reproduce.experiment import Experiment
from lightning_modules.reproduce.experiments import adding, ucr
from lightning_modules.reproduce.figures import PANEL, curves_by_step, draw_curves, draw_legend, models, settings
from lightning_modules.reproduce.learning_rates import at_rate
from lightning_modules.reproduce.planned_run import PlannedRun
from lightning_modules.reproduce.results import Result

LENGTH, SET = "L = 300", "ArrowHead"
RADII: dict[str, dict[str, Any]] = {
    **{f"r = {radius:g}": {"radius": radius} for radius in (0.001, 0.01, 0.1)},
    "unconstrained": {"radius": None},
}
REFLECTORS: dict[str, dict[str, Any]] = {f"m = {count}": {"reflectors": count} for count in (4, 8, 16, 32, 128)}


def runs(quick: bool, seed: int, experiment: str, varied: Mapping[str, dict[str, Any]]) -> list[PlannedRun]:
    """Spectral-RNN on the adding problem and on a set of the UCR archive; quick: the former, 30 steps long."""
    grids = [(adding.runs, "L = 30")] if quick else [(adding.runs, LENGTH), (ucr.runs, SET)]
    return [
        replace(run, experiment=experiment, model=name, task=(run.task[0], run.task[1] | arguments))
        for grid, setting in grids
        for run in grid(quick, seed)
        if (run.model, run.setting) == ("Spectral-RNN", setting)
        for name, arguments in varied.items()
        if arguments.get("reflectors", 0) <= run.task[1]["hidden_size"]
    ]


def length_runs(quick: bool, seed: int) -> list[PlannedRun]:
    """Spectral-RNN on the adding problem, 100 steps long, with reflectors as drawn or normalised after each step.

    At several learning rates, as a step turns a short reflector further; quick: 30 steps long.
    """
    setting = "L = 30" if quick else "L = 100"
    (run,) = (c for c in adding.runs(quick, seed) if (c.model, c.setting) == ("Spectral-RNN", setting))
    as_drawn = {name: value for name, value in run.trainer.items() if name != "callbacks"}
    return [
        at_rate(replace(run, experiment="lengths", model=f"{name}, {rate:g}", trainer=trainer), rate)
        for name, trainer in (("as drawn", as_drawn), ("normalised", run.trainer))
        for rate in (0.01, 0.003, 0.001, 0.0003)
    ]


def draw(results: Sequence[Result]) -> Figure:
    """Draws validation errors of the adding problem by step, and test accuracies of the other set."""
    figure = Figure(figsize=(2 * PANEL[0], PANEL[1] + 0.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    curves = [result for result in results if "val_mse" in result.curves]
    setting = next(iter(settings(curves)), "")
    draw_curves(left, curves, setting, "val_mse", "baseline_mse")
    left.set(title=f"adding, {setting}", xlabel="step", ylabel="mean squared error")
    scored = [result for result in results if "test_accuracy" in result.scores]
    for i, name in enumerate(models(scored)):
        accuracies = [result.scores["test_accuracy"] for result in scored if result.model == name]
        right.errorbar(i, np.mean(accuracies), np.std(accuracies), color="black", marker="o", capsize=3)
    right.set_xticks(range(len(models(scored))), models(scored))
    right.set(title=SET, ylabel="test accuracy")
    draw_legend(figure, [left])
    return figure


def _study(name: str, title: str, varied: Mapping[str, dict[str, Any]], note: str = "") -> Experiment:
    return Experiment(
        title=title,
        runs=lambda quick, seed: runs(quick, seed, name, varied),
        score="test_mse",
        other_score="test_accuracy",
        draw=draw,
        digits=4,
        seeds=3,
        notes=(f"{note}Mean squared errors of the adding problem, accuracies of {SET}.",),
    )


RADIUS = _study("radius", "Spectral-RNN by the radius of its band", RADII)
REFLECTOR_COUNT = _study(
    "reflectors", "Spectral-RNN by its number of reflectors", REFLECTORS, "m reflectors on each side. "
)
LENGTHS = Experiment(
    title="Spectral-RNN by the lengths of its reflectors",
    runs=length_runs,
    score="test_mse",
    draw=curves_by_step("val_mse", "mean squared error", "baseline_mse", log=True),
    digits=4,
    notes=(
        "Reflectors are drawn from a normal distribution, with lengths about √n; the paper's released code gives them "
        "unit length after each step. Their product depends on directions alone, but a step of Adam turns a short "
        "reflector further.",
    ),
)
