"""What the pictures are made of: rows of panels, densities, running means and heat maps."""

from __future__ import annotations

import re
from collections.abc import Iterable

from spectral_param.extras import extra

with extra("plot"):
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike, NDArray

Band = tuple[float, float]
Floats = NDArray[np.float64]

SHADE = "#DCE9F7"


def panel_row(count: int, height: float, share_y: bool = True) -> tuple[Figure, NDArray[np.object_]]:
    """A row of panels, 8 inches wide in all, or more where there are more than four."""
    figure = Figure(figsize=(max(8.0, 2.0 * count), height), dpi=100, layout="constrained")
    panels = figure.subplots(1, count, sharey=share_y, squeeze=False)[0]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.title.set_fontsize(10)
    return figure, panels


def entitle(panel: Axes, title: str, panels: int) -> None:
    """Puts a title above one of some panels in a row, in lines that it has room for: names break before a dot."""
    room, lines = round(90 / panels), [""]
    for part in re.split(r"(?=[.,])", title):
        if lines[-1] and len(lines[-1]) + len(part) > room:
            lines.append("")
        lines[-1] += part
    panel.set_title("\n".join(lines))


def columns(labels: Iterable[str]) -> int:
    """How many columns of a legend there is room for."""
    return max(1, min(6, 90 // (8 + max(map(len, labels), default=0))))


def array(values: ArrayLike) -> Floats:
    """As float64."""
    return np.asarray(values, dtype=np.float64)


def positive(values: Floats) -> Floats:
    """With NaN where a log scale has no place."""
    return np.where((values > 0) & np.isfinite(values), values, np.nan)


def limits(values: Floats, margin: float) -> tuple[float, float]:
    """Least and greatest of what is finite, with a margin as a share of what is between, on the same side of 0."""
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    low, high = float(values.min()), float(values.max())
    room = margin * (high - low) or 0.05
    return (max(low - room, 0.0) if low >= 0 else low - room), high + room


def log_colors(values: Floats, decades: float) -> LogNorm:
    """A log scale from the greatest of the values down to the least positive one, or some decades."""
    values = positive(values)
    greatest, least = (float(bound(values)) if np.isfinite(values).any() else 1.0 for bound in (np.nanmax, np.nanmin))
    return LogNorm(min(max(least, greatest * 10**-decades), 0.5 * greatest), greatest)


def density(sample: Floats, x: Floats) -> Floats:
    """Gaussian kernel density with half of Silverman's width, which smears edges less, at least 1/200 of the axis.

    Of the finite numbers of the sample; all zero where there is none.
    """
    sample = sample[np.isfinite(sample)]
    if not len(sample):
        return np.zeros_like(x)
    width = max(0.53 * sample.std() * len(sample) ** -0.2, 0.005 * (x[-1] - x[0]))
    return np.exp(-0.5 * ((x[:, None] - sample) / width) ** 2).mean(axis=1) / (width * np.sqrt(2 * np.pi))


def running_mean(values: Floats, geometric: bool) -> Floats:
    """Mean over those of the last fiftieth of the values that are finite; the geometric mean of positive ones."""
    values = np.log(positive(values)) if geometric else values
    window = max(1, len(values) // 50)
    known = np.isfinite(values)
    sums = np.cumsum(np.where(known, values, 0.0))
    counts = np.cumsum(known).astype(float)
    for total in (sums, counts):
        total[window:] = total[window:] - total[:-window].copy()
    mean = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return np.exp(mean) if geometric else mean


def heatmap(panel: Axes, x: ArrayLike, y: ArrayLike, values: Floats, colors: LogNorm, cmap: str) -> QuadMesh:
    """Cells of values (len(y), len(x)), thinned to 200 columns; what is below the colours has the lowest."""
    x = array(x)
    values = np.maximum(values, colors.vmin or 0.0)
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), 200)).round().astype(int))
    return panel.pcolormesh(x[chosen], array(y), values[:, chosen], norm=colors, cmap=cmap, shading="nearest")


def shade(panel: Axes, band: Band | None, *, vertical: bool) -> None:
    """Shades a band of values, where there is one."""
    if band is not None:
        (panel.axvspan if vertical else panel.axhspan)(*band, color=SHADE, lw=0, zorder=0)
