"""Figures of results: panels by setting, lines by model, means over seeds."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lightning_modules.reproduce.results import Result

Draw = Callable[[Sequence[Result]], Figure]
PANEL = (4.2, 3.2)  # inches


def curves_by_step(curve: str, ylabel: str, baseline: str | None = None, log: bool = False) -> Draw:
    """Returns a function that draws a curve of training, a panel for each setting.

    Args:
        curve: name of the curve, such as "val_mse".
        ylabel: what it is called.
        baseline: score of a trivial answer that is drawn as a line, such as "baseline_mse".
        log: whether the axis is logarithmic.
    """

    def draw(results: Sequence[Result]) -> Figure:
        figure, panels = _panels(settings(results))
        for panel, setting in zip(panels, settings(results), strict=True):
            draw_curves(panel, results, setting, curve, baseline, log)
            panel.set(title=setting, xlabel="step", ylabel=ylabel)
        draw_legend(figure, panels)
        return figure

    return draw


def training_and_validation(sets: Sequence[str]) -> Draw:
    """Returns a function that draws losses by step, of training dashed, of validation not, a panel for each set."""

    def draw(results: Sequence[Result]) -> Figure:
        names = [name for name in sets if name in settings(results)] or settings(results)[:1]
        figure, panels = _panels(names)
        for panel, name in zip(panels, names, strict=True):
            for i, model in enumerate(models(results)):
                runs = [r for r in results if (r.model, r.setting) == (model, name)]
                for curve, line in (("val_loss", "-"), ("train_loss", "--")):
                    curves = [r.curves[curve] for r in runs]
                    length = min((len(values) for _, values in curves), default=0)
                    if length:
                        mean = np.mean([values[:length] for _, values in curves], axis=0)
                        label = model if line == "-" else "of training"
                        panel.plot(curves[0][0][:length], mean, line, color=f"C{i}", label=label, lw=1)
            panel.set(title=name, xlabel="step", ylabel="cross-entropy")
        draw_legend(figure, panels)
        return figure

    return draw


def draw_curves(
    panel: Axes, results: Sequence[Result], setting: str, curve: str, baseline: str | None, log: bool = False
) -> None:
    """Draws a curve of each model, the mean over its seeds, and the baseline, up to twice which the axis reaches.

    Args:
        panel: where.
        results: of all settings, among which each model has its colour.
        setting: which of them are drawn.
        curve: name of the curve.
        baseline: score of a trivial answer.
        log: whether the axis is logarithmic.
    """
    chosen = [r for r in results if r.setting == setting]
    for i, model in enumerate(models(results)):
        runs = [r.curves[curve] for r in chosen if r.model == model and curve in r.curves]
        if runs:
            length = min(len(values) for _, values in runs)
            mean = np.mean([values[:length] for _, values in runs], axis=0)
            panel.plot(runs[0][0][:length], mean, color=f"C{i}", label=model, marker="." if length < 3 else None)
    levels = [r.scores[baseline] for r in chosen if baseline in r.scores]
    if levels:
        panel.axhline(levels[0], color="black", ls="--", lw=1, label="trivial answer")
    if log:
        panel.set_yscale("log")
    elif levels:
        panel.set_ylim(0, min(panel.get_ylim()[1], 2 * levels[0]))


def scores_by_setting(score: str, xlabel: str, ylabel: str, baseline: str | None = None, line: str = "-") -> Draw:
    """Returns a function that draws a test score over the settings, a line for each model.

    Args:
        score: name of the score, such as "test_accuracy".
        xlabel: what the settings are.
        ylabel: what the score is called.
        baseline: score of a trivial answer, drawn as a dash at each setting.
        line: style of the line between settings; "" where their order means nothing.
    """

    def draw(results: Sequence[Result]) -> Figure:
        names = settings(results)
        figure = Figure(figsize=(max(6.0, 0.5 * len(names) + 2), 4.0 if line else 5.5), layout="constrained")
        panel = figure.subplots()
        for i, model in enumerate(models(results)):
            values = [_scores(results, model, name, score) for name in names]
            means = np.array([np.mean(v) if v else np.nan for v in values])
            spread = np.array([np.std(v) if v else np.nan for v in values])
            # a little aside where no line goes through, so that models do not hide each other
            places = np.arange(len(names)) + (0.0 if line else 0.15 * (i - (len(models(results)) - 1) / 2))
            panel.errorbar(places, means, spread, color=f"C{i}", marker="o", ms=4, ls=line, label=model)
        for i, name in enumerate(names):
            levels = [r.scores[baseline] for r in results if r.setting == name and baseline in r.scores]
            if levels:
                panel.plot([i - 0.35, i + 0.35], [levels[0]] * 2, color="black", ls="--", lw=1, label="trivial answer")
        panel.set_xticks(range(len(names)), names, rotation=90 if len(names) > 8 else 0)
        panel.set(xlabel=xlabel, ylabel=ylabel)
        draw_legend(figure, [panel])
        return figure

    return draw


def curves_and_gradients(results: Sequence[Result]) -> Figure:
    """Draws validation errors, and below them the gradient by the state at each time step (Figure 1 of the paper)."""
    names = settings(results)
    figure = Figure(figsize=(PANEL[0] * len(names), 2 * PANEL[1]), layout="constrained")
    rows = figure.subplots(2, len(names), squeeze=False)
    for above, below, setting in zip(*rows, names, strict=True):
        chosen = [r for r in results if r.setting == setting]
        draw_curves(above, results, setting, "val_mse", "baseline_mse")
        above.set(title=setting, xlabel="step", ylabel="mean squared error")
        for i, model in enumerate(models(results)):
            profiles = [finite_mean(r.gradients) for r in chosen if r.model == model and r.gradients]
            if profiles:
                times = np.linspace(0, 1, len(profiles[0]))
                mean = finite_mean(profiles)
                below.plot(times, np.where(mean > 0, mean, np.nan), color=f"C{i}", label=model)
        below.set(xlabel="time t / length", ylabel="‖∂L/∂h⁽ᵗ⁾‖", yscale="log")
    draw_legend(figure, list(rows.flat))
    return figure


def finite_mean(rows: Sequence[Sequence[float]] | Sequence[np.ndarray]) -> np.ndarray:
    """Means of columns over the numbers in them that are finite; NaN where there are none.

    Example:
        >>> finite_mean([[1.0, np.nan, np.nan], [3.0, 5.0, np.inf]])
        array([ 2.,  5., nan])
    """
    return np.ma.masked_invalid(rows).mean(axis=0).filled(np.nan)


def settings(results: Sequence[Result]) -> list[str]:
    """The settings of some results, in their order."""
    return list(dict.fromkeys(result.setting for result in results))


def models(results: Sequence[Result]) -> list[str]:
    """The models of some results, in their order."""
    return list(dict.fromkeys(result.model for result in results))


def _scores(results: Sequence[Result], model: str, setting: str, score: str) -> list[float]:
    return [r.scores[score] for r in results if (r.model, r.setting) == (model, setting)]


def _panels(names: Sequence[str]) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(PANEL[0] * len(names), PANEL[1] + 0.5), layout="constrained")
    return figure, list(figure.subplots(1, len(names), squeeze=False).flat)


def draw_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Draws one legend below all panels."""
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=max(1, int(figure.get_figwidth() // 2)),
        frameon=False,
    )
