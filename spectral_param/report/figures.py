"""Six pictures of a training run, each a function from arrays to a matplotlib ``Figure``.

Colours are those of Okabe and Ito and of perceptually uniform maps, readable by colour-blind people. Nothing here
touches pyplot, so no figure is kept alive and no window opens; ``figure.savefig("sigma.png")`` writes one.
"""

from __future__ import annotations

from collections.abc import Mapping

from spectral_param.extras import extra
from spectral_param.report.panels import (
    Band,
    array,
    columns,
    density,
    entitle,
    heatmap,
    limits,
    log_colors,
    panel_row,
    positive,
    running_mean,
    shade,
)

with extra("plot"):
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from numpy.typing import ArrayLike

Curve = tuple[ArrayLike, ArrayLike]
"""Steps, and what was read at them."""

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#555555", "#F0E442")
LINES = ("-", "--", "-.", ":")


def sigma_ridgeline_figure(
    runs: Mapping[str, Curve], bands: Mapping[str, Band] | None = None, ridges: int = 11
) -> Figure:
    """Density of the singular values at several steps, one ridge above the other, a panel for each run.

    Args:
        runs: (steps (n,), σ (n, k)) by title.
        bands: (low, high) to shade, by title.
        ridges: number of ridges, spread evenly over the steps.

    Example:
        >>> import numpy as np
        >>> from spectral_param.report.figures import sigma_ridgeline_figure
        >>> sigma = 1 + 0.1 * np.random.default_rng(0).normal(size=(50, 32))
        >>> figure = sigma_ridgeline_figure({"rnn": (range(50), sigma)}, {"rnn": (0.9, 1.1)})
        >>> figure.axes[0].get_xlabel()
        'singular value'
    """
    figure, row = panel_row(len(runs), height=3.6)
    values = np.concatenate([array(sigma).ravel() for _, sigma in runs.values()])
    edges = [edge for band in (bands or {}).values() for edge in band]
    low, high = limits(np.concatenate([values, edges]), margin=0.08)
    x = np.linspace(low, high, 400)
    for panel, (title, (steps, sigma)) in zip(row, runs.items(), strict=True):
        steps, sigma = array(steps), array(sigma)
        chosen = np.unique(np.linspace(0, len(steps) - 1, ridges).round().astype(int))
        for foot, reading in reversed(list(enumerate(chosen))):
            color = colormaps["viridis"](0.9 * foot / max(len(chosen) - 1, 1))
            ridge = density(sigma[reading], x)
            crest = foot + 1.8 * ridge / (ridge.max() or 1.0)
            panel.fill_between(x, foot, crest, color=color, alpha=0.9, lw=0)
            panel.plot(x, crest, color="white", lw=0.8)
        shown = range(0, len(chosen), max(1, len(chosen) // 5))
        panel.set_yticks(list(shown), [f"{steps[chosen[i]]:,.0f}" for i in shown])
        shade(panel, (bands or {}).get(title), vertical=True)
        entitle(panel, title, len(runs))
        panel.set(xlabel="singular value", xlim=(low, high), ylim=(-0.1, len(chosen) + 1.1))
    row[0].set_ylabel("step")
    return figure


def margin_gradient_loss_figure(
    runs: Mapping[str, Mapping[str, Curve]],
    radius: float | None = None,
    baseline: float | None = None,
    gradient_label: str = "‖∂L/∂h⁽⁰⁾‖",
) -> Figure:
    """Spectral margin, gradient magnitude and training loss by step, the runs in one colour each (Figures 1 and 4).

    Gradient and loss are drawn faintly as they are, and firmly as running means over a fiftieth of the steps, that of
    the gradient a geometric one.

    Args:
        runs: by name of the run, the curves ``"margin"``, ``"gradient"`` and ``"loss"``, each (steps (n,), values
            (n,)); a curve may be missing, and one that all miss has no panel.
        radius: of the band, drawn across the margins.
        baseline: drawn across the losses.
        gradient_label: what the gradient is of.

    Example:
        >>> from spectral_param.report.figures import margin_gradient_loss_figure
        >>> steps = [0, 50, 100]
        >>> run = {"margin": (steps, [0.001, 0.009, 0.01]), "gradient": (steps, [0.1, 0.2, 0.1]),
        ...        "loss": (steps, [0.3, 0.17, 0.02])}
        >>> figure = margin_gradient_loss_figure({"Spectral-RNN": run}, radius=0.01, baseline=0.167)
        >>> len(figure.axes)
        3
    """
    titles = {
        "margin": "spectral margin  max|σ - 1|",
        "gradient": f"gradient  {gradient_label}",
        "loss": "training loss",
    }
    shown = [curve for curve in titles if any(curve in curves for curves in runs.values())]
    figure, row = panel_row(len(shown), height=3.0, share_y=False)
    handles: dict[str, Line2D] = {}
    for panel, curve in zip(row, shown, strict=True):
        for i, (name, curves) in enumerate(runs.items()):
            style = {"color": PALETTE[i % len(PALETTE)], "ls": LINES[i // len(PALETTE) % len(LINES)], "lw": 1.6}
            if curve not in curves:
                handles.setdefault(name, panel.plot([], [], **style)[0])
                continue
            steps, values = (array(axis) for axis in curves[curve])
            firm = positive(values)
            if curve != "margin":
                panel.plot(steps, values if curve == "loss" else firm, **style | {"alpha": 0.25, "lw": 0.8})
                firm = running_mean(values, geometric=curve == "gradient")
            handles.setdefault(name, panel.plot(steps, firm, **style)[0])
        panel.set(title=titles[curve], xlabel="step")
        if curve != "loss" and np.isfinite(panel.dataLim.intervaly).all():  # there is something for a log scale to show
            panel.set_yscale("log")
        for of, level, label, ls in (("margin", radius, "radius", ":"), ("loss", baseline, "baseline", "--")):
            if curve == of and level is not None:
                handles[label] = panel.axhline(level, color="black", lw=0.8, ls=ls)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns(handles), frameon=False)
    return figure


def gradient_heatmap_figure(runs: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]], decades: float = 12) -> Figure:
    """‖∂L/∂h⁽ᵗ⁾‖ over training step and time step on a log scale, a panel for each run: where in time gradients die.

    Args:
        runs: (steps (n,), times (m,), norms (n, m)) by title; NaN stays empty.
        decades: how far below the greatest norm colours reach.

    Example:
        >>> import numpy as np
        >>> from spectral_param.report.figures import gradient_heatmap_figure
        >>> norms = 10.0 ** -np.tile(np.arange(30, 0, -1) / 3, (20, 1))
        >>> figure = gradient_heatmap_figure({"rnn": (range(20), range(30), norms)})
        >>> figure.axes[0].get_ylabel()
        'time step t'
    """
    figure, row = panel_row(len(runs), height=3.2)
    colors = log_colors(np.concatenate([array(norms).ravel() for _, _, norms in runs.values()]), decades)
    for panel, (title, (steps, times, norms)) in zip(row, runs.items(), strict=True):
        mesh = heatmap(panel, steps, times, array(norms).T, colors, "magma")
        entitle(panel, title, len(runs))
        panel.set(xlabel="step")
    row[0].set_ylabel("time step t")
    figure.colorbar(mesh, ax=list(row), label="‖∂L/∂h⁽ᵗ⁾‖")
    return figure


def sigma_lines_figure(runs: Mapping[str, Curve], bands: Mapping[str, Band] | None = None, lines: int = 128) -> Figure:
    """Every singular value by step, ranked from the greatest (red) to the least (blue), a panel for each run.

    Args:
        runs: (steps (n,), σ (n, k)) by title.
        bands: (low, high) to shade, by title.
        lines: the most lines to draw; of more values their quantiles are shaded: all, 5 to 95 %, 25 to 75 %.

    Example:
        >>> import numpy as np
        >>> from spectral_param.report.figures import sigma_lines_figure
        >>> sigma = np.linspace(0.5, 1.5, 16) + np.zeros((10, 1))
        >>> figure = sigma_lines_figure({"rnn": (range(10), sigma)})
        >>> len(figure.axes[0].lines)
        16
    """
    figure, row = panel_row(len(runs), height=3.2)
    for panel, (title, (steps, sigma)) in zip(row, runs.items(), strict=True):
        steps, ranked = array(steps), np.sort(array(sigma), axis=1)
        shade(panel, (bands or {}).get(title), vertical=False)
        if ranked.shape[1] <= lines:
            for i, line in enumerate(ranked.T):
                panel.plot(steps, line, color=colormaps["coolwarm"](i / max(ranked.shape[1] - 1, 1)), lw=1)
        else:
            for q, alpha in ((0.0, 0.2), (0.05, 0.3), (0.25, 0.5)):
                low, high = np.quantile(ranked, [q, 1 - q], axis=1)
                panel.fill_between(
                    steps, low, high, color=PALETTE[0], alpha=alpha, lw=0, label=f"{q:.0%} to {1 - q:.0%}"
                )
            panel.plot(steps, np.median(ranked, axis=1), color="black", lw=1, label="median")
        entitle(panel, title, len(runs))
        panel.set(xlabel="step")
    if row[0].get_legend_handles_labels()[0]:
        figure.legend(*row[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    row[0].set_ylabel("singular value")
    return figure


def margin_heatmap_figure(runs: Mapping[str, tuple[ArrayLike, Mapping[str, ArrayLike]]]) -> Figure:
    """Spectral margin ``max |σ - 1|`` by weight and step on a log scale, a panel for each run: which layer runs away.

    Args:
        runs: (steps (n,), margins (n,) by name of the weight) by title.

    Example:
        >>> from spectral_param.report.figures import margin_heatmap_figure
        >>> figure = margin_heatmap_figure({"mlp": ([0, 1], {"first": [0.1, 0.2], "second": [0.1, 0.9]})})
        >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
        ['first', 'second']
    """
    most = max(len(margins) for _, margins in runs.values())
    figure, row = panel_row(len(runs), height=1.6 + 0.22 * most, share_y=False)
    values = np.concatenate([array(margin) for _, margins in runs.values() for margin in margins.values()])
    colors = log_colors(values, decades=6)
    for panel, (title, (steps, margins)) in zip(row, runs.items(), strict=True):
        layers = np.stack([array(margin) for margin in margins.values()])
        mesh = heatmap(panel, steps, range(len(layers)), layers, colors, "cividis")
        known = panel is not row[0] and list(margins) == [text.get_text() for text in row[0].get_yticklabels()]
        panel.set_yticks(range(len(layers)), [] if known else list(margins), fontsize=8)
        panel.invert_yaxis()
        panel.set(title=title, xlabel="step")
    figure.colorbar(mesh, ax=list(row), label="max|σ - 1|")
    return figure


def saturation_figure(
    steps: ArrayLike, sigma: ArrayLike, low: float, high: float, title: str = "", tolerance: float = 0.02
) -> Figure:
    """Share of singular values pinned at each edge of their range: whether the band or the learning rate is too tight.

    Args:
        steps: (n,).
        sigma: (n, k).
        low: lower edge of the range.
        high: upper edge.
        title: of the picture.
        tolerance: how near an edge counts as pinned, as a share of the range.

    Example:
        >>> from spectral_param.report.figures import saturation_figure
        >>> figure = saturation_figure([0, 1], [[0.9, 1.0], [0.9, 1.1]], 0.9, 1.1, title="rnn")
        >>> figure.axes[0].get_ylabel()
        'share of σ'
    """
    figure, (panel,) = panel_row(1, height=3.0)
    steps, sigma = array(steps), array(sigma)
    near = tolerance * (high - low)
    upper, lower = (sigma >= high - near).mean(axis=1), (sigma <= low + near).mean(axis=1)
    panel.fill_between(steps, 0, upper, color=PALETTE[3], alpha=0.8, lw=0, label=f"at the upper edge, {high:g}")
    panel.fill_between(steps, 0, -lower, color=PALETTE[0], alpha=0.8, lw=0, label=f"at the lower edge, {low:g}")
    panel.axhline(0, color="black", lw=0.8)
    most = max(0.1, 1.1 * upper.max(), 1.1 * lower.max())
    panel.set(title=title, xlabel="step", ylabel="share of σ", ylim=(-most, most))
    panel.yaxis.set_major_formatter(lambda share, _: f"{abs(share):.0%}")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
