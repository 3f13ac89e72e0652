"""The pictures of :mod:`spectral_param.report.figures`, under their public name; matplotlib comes with the first.

Example:
    >>> from spectral_param.callbacks.figures import saturation_figure
    >>> saturation_figure([0, 1], [[0.9, 1.0], [0.9, 1.1]], 0.9, 1.1).axes[0].get_ylabel()
    'share of σ'
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from spectral_param.report import figures

    return getattr(figures, name)
