"""The singular values in the terminal, under the progress bar."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from torch import Tensor

from spectral_param.callbacks.patterns import warn_unmatched
from spectral_param.callbacks.private import current_step
from spectral_param.callbacks.sharded_sigma import trained_singular_values
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights
from spectral_param.spectrum.statistics import spectral_statistics

BARS = "▁▂▃▄▅▆▇█"


class SpectralProgressBar(RichProgressBar):
    """Lightning's rich progress bar with a live table of singular values under it, a row for each weight in SVD form.

    Args:
        weights: name patterns of the weights to show.
        every_n_steps: steps between refreshes of the table.
        **options: those of :class:`lightning.pytorch.callbacks.RichProgressBar`.

    Raises:
        ValueError: if ``every_n_steps`` is not positive.

    Warns:
        UserWarning: at train start, of patterns that match nothing.

    Example:
        >>> from spectral_param.callbacks import SpectralProgressBar
        >>> bar = SpectralProgressBar(weights="rnn.*", leave=True)
    """

    def __init__(self, *, weights: str | Sequence[str] = "*", every_n_steps: int = 20, **options: Any) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps: expected a positive number, got {every_n_steps}.")
        super().__init__(**options)
        self.weights = as_patterns("weights", weights)
        self.every_n_steps = every_n_steps
        self._sigma: dict[str, Tensor] = {}

    def _init_progress(self, trainer: Trainer) -> None:
        before = self.progress
        super()._init_progress(trainer)
        if self.progress is None or self.progress is before:
            return
        bars = self.progress.get_renderables

        def with_table() -> Iterable[RenderableType]:
            yield from bars()
            if self._sigma:
                yield sigma_table(self._sigma)

        self.progress.get_renderables = with_table  # type: ignore[method-assign]  # rich asks it what to show

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Shows the table from now on."""
        warn_unmatched("weights", self.weights, parametrized_weights(pl_module, ["*"]), "weight in SVD form")
        super().on_train_start(trainer, pl_module)
        self._read(trainer, pl_module)  # a run that goes on may begin between two refreshes

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Reads σ anew where it is time."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if current_step(trainer) % self.every_n_steps == 0:
            self._read(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leaves the table of what training arrived at."""
        self._read(trainer, pl_module)
        super().on_train_end(trainer, pl_module)

    def _read(self, trainer: Trainer, model: LightningModule) -> None:
        chosen = parametrized_weights(model, self.weights)
        self._sigma = {name: trained_singular_values(trainer, p) for name, p in chosen.items()}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Takes the table away."""
        super().teardown(trainer, pl_module, stage)
        self._sigma = {}


def sigma_table(sigma: dict[str, Tensor]) -> Table:
    """A table of singular values: their range, margin and distribution, a row for each weight.

    Example:
        >>> import torch
        >>> from rich.console import Console
        >>> from spectral_param.callbacks.progress import sigma_table
        >>> Console(width=80).print(sigma_table({"rnn.weight_hh_l0": torch.tensor([[0.99, 1.0, 1.02]])}))
         weight               min    mean     max    margin   min to max
        ─────────────────────────────────────────────────────────────────
         rnn.weight_hh_l0   0.990   1.003   1.020   2.0e-02   █▁█▁▁▁▁█
    """
    table = Table("weight", box=SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for heading in ("min", "mean", "max", "margin"):
        table.add_column(heading, justify="right")
    table.add_column("min to max")
    for name, values in sigma.items():
        numbers = spectral_statistics(values)
        levels = (f"{numbers[key]:.3f}" for key in ("sigma_min", "sigma_mean", "sigma_max"))
        table.add_row(name, *levels, f"{numbers['spectral_margin']:.1e}", sparkline(values))
    return table


def sparkline(values: Tensor, bins: int = 8) -> str:
    """A histogram of the finite values in one line of text, empty where there are none.

    Example:
        >>> import torch
        >>> from spectral_param.callbacks.progress import sparkline
        >>> sparkline(torch.tensor([0.0, 0.5, 0.5, 0.5, 1.0]), bins=3)
        '▃█▃'
    """
    values = values[values.isfinite()].float()
    if not len(values):
        return ""
    counts = torch.histc(values, bins)
    heights = (counts / counts.max() * (len(BARS) - 1)).round().int()
    return "".join(BARS[height] for height in heights.tolist())
