"""Watching the singular values of a model in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from spectral_param.callbacks.histograms import write_histograms
from spectral_param.callbacks.logging import current_step, write
from spectral_param.callbacks.patterns import (
    as_patterns,
    hint_at_rates,
    owner_of,
    parametrized_weights,
    plain_weights,
    warn_unmatched,
    warn_unpruned,
    warn_untrained,
)
from spectral_param.callbacks.recorder import Recorder
from spectral_param.callbacks.sharded_sigma import (
    dense_singular_values,
    has_flat_shards,
    trained_singular_values,
)
from spectral_param.parametrization.blocks import blocks_of, gate_names, matrices_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.report.history import LOSS
from spectral_param.spectrum.statistics import STATISTICS, spectral_statistics


class SpectralMonitor(Recorder):
    """Logs and keeps the singular values of a model's weights.

    For each weight it logs ``{statistic}-{weight}``, for instance ``sigma_max-rnn.weight_hh_l0``, and for the whole
    model ``spectral_margin``, the largest margin of all, which is the one to give to ``ModelCheckpoint`` or the
    progress bar. See :func:`spectral_statistics` for the statistics. Reading a weight in SVD form does not build it and
    costs microseconds; a plain one costs a ``torch.linalg.svdvals`` (0.6, 21, 150 ms for n = 128, 512, 1024 on one CPU
    core): watch plain weights with a monitor of their own, at a longer interval.

    ``history`` holds every σ that was read, by weight name, together with the loss of the batch that followed. It is
    saved in checkpoints and resumed. Under ``ddp_spawn`` it does not come back to the launching process; read the
    checkpoint.

    Args:
        weights: name patterns of the weights in SVD form to watch.
        dense: name patterns of plain weights to watch too, for instance ``"*.weight_hh_l*"``, read as
            :func:`~spectral_param.singular_values` reads them: a kernel of a convolution as its (out, in·kh·kw) matrix.
        per_gate: each gate of an LSTM or GRU weight, and each of q, k, v in attention, as a weight of its own, named
            ``{weight}.{gate}``, and each group of a plain convolution as a block of its own. Weights in SVD form need
            ``chunks`` for that.
        statistics: which statistics to log.
        center: what margins are measured from.
        histograms: also hands σ to loggers that draw histograms (TensorBoard, Weights & Biases).
        every_n_steps: see :class:`Recorder`, as the options below.
        every_n_epochs: reads at the start of every n-th epoch instead.
        prog_bar: shows ``spectral_margin`` in the progress bar.
        separator: between statistic and weight in the names.
        max_readings: the most readings to keep.
        report: writes ``spectral_report.html`` at the end of fit.

    Raises:
        TypeError: if patterns are no strings.
        ValueError: for an unknown statistic or a bad interval; at fit start for ``dense`` under ``FSDPStrategy``, whose
            flat shards have no singular values.

    A line at fit start tells where Adam trains σ at the rate of all else: see
    :func:`~spectral_param.parameter_groups`.

    Warns:
        UserWarning: at fit start, of patterns that match nothing and of weights whose factors no optimizer holds.

    Example:
        >>> from spectral_param.callbacks import SpectralMonitor
        >>> callbacks = [
        ...     SpectralMonitor(prog_bar=True),
        ...     SpectralMonitor(weights=(), dense="head.*", every_n_steps=1000),
        ... ]
    """

    def __init__(
        self,
        *,
        weights: str | Sequence[str] = "*",
        dense: str | Sequence[str] = (),
        per_gate: bool = False,
        statistics: Sequence[str] = STATISTICS,
        center: float = 1.0,
        histograms: bool = False,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        prog_bar: bool = False,
        separator: str = "-",
        max_readings: int = 1000,
        report: bool = True,
    ) -> None:
        super().__init__(
            every_n_steps=every_n_steps,
            every_n_epochs=every_n_epochs,
            prog_bar=prog_bar,
            separator=separator,
            max_readings=max_readings,
            report=report,
        )
        self.weights = as_patterns("weights", weights)
        self.dense = as_patterns("dense", dense)
        unknown = [name for name in statistics if name not in STATISTICS]
        if unknown:
            raise ValueError(f"statistics: expected some of {STATISTICS}, got {unknown}.")
        self.per_gate = per_gate
        self.statistics = tuple(statistics)
        self.center = float(center)  # goes into checkpoints, which hold plain numbers alone
        self.histograms = histograms
        self.described: dict[str, dict[str, Any]] = {}
        self._pending: dict[str, Tensor] | None = None

    @property
    def state_key(self) -> str:
        """Tells monitors of different weights apart in a checkpoint."""
        return self._generate_state_key(
            weights=self.weights,
            dense=self.dense,
            per_gate=self.per_gate,
            every_n_steps=self.every_n_steps,
            every_n_epochs=self.every_n_epochs,
        )

    # ------------------------------------------------------------------------------------------------ hooks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Looks up what there is to watch, and says what there is not."""
        super().on_train_start(trainer, pl_module)
        self._pending = None
        if self.dense and has_flat_shards(trainer):
            raise ValueError(
                "dense: expected no pattern under FSDPStrategy, whose flat shards have no singular values."
            )
        warn_untrained(pl_module, trainer.optimizers)
        warn_unpruned(trainer, pl_module)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set from outside
        if next(one for one in callbacks if isinstance(one, SpectralMonitor)) is self:
            hint_at_rates(pl_module, trainer.optimizers)
        trained = parametrized_weights(pl_module, self.weights)
        plain = plain_weights(pl_module, self.dense)
        warn_unmatched("weights", self.weights, trained, "weight in SVD form")
        warn_unmatched("dense", self.dense, plain, "plain weight")
        self.described = {}
        for name, parametrization in trained.items():
            names = self._names(pl_module, name, parametrization.chunks)
            described = describe(parametrization) | {"blocks": parametrization.chunks // len(names)}
            self.described |= dict.fromkeys(names, described)
        for name, (module, weight) in plain.items():
            names = self._names(pl_module, name)
            count = matrices_of(module, weight, self._chunks(pl_module, name)).count
            self.described |= {key: {"shape": list(weight.shape), "blocks": count // len(names)} for key in names}
        if not self.described:
            rank_zero_warn("SpectralMonitor has nothing to watch: no weight is in SVD form, and dense names no other.")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Reads σ before the step."""
        if self.is_due(trainer, batch_idx):
            self._pending = self.read(trainer, pl_module)
            self.log_now(trainer, pl_module, self.summary(self._pending), "spectral_margin")
            if self.histograms:
                write_histograms(trainer, self._pending, current_step(trainer))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Keeps what was read together with the loss of the batch."""
        if self._pending is None:
            return
        if isinstance(outputs, dict) and "loss" in outputs:
            loss = outputs["loss"].detach() * trainer.accumulate_grad_batches
            self._pending[LOSS] = trainer.strategy.reduce(loss, reduce_op="mean")
        self.history.record(current_step(trainer), self._pending)
        self._pending = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads what training arrived at."""
        reading = self.read(trainer, pl_module)
        write(trainer, self.summary(reading))
        self.history.record(current_step(trainer), reading)

    def state_dict(self) -> dict[str, Any]:
        """The history and what the weights are, as CPU tensors and plain values."""
        return super().state_dict() | {"described": self.described, "center": self.center}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes both up again."""
        super().load_state_dict(state_dict)
        self.described = state_dict["described"]

    # ---------------------------------------------------------------------------------------------- reading

    def read(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Tensor]:
        """Singular values of every watched weight, (blocks, k), float32 on the CPU.

        A collective where the model is sharded: to be called on every rank.
        """
        readings: dict[str, Tensor] = {}
        for name, parametrization in parametrized_weights(pl_module, self.weights).items():
            names = self._names(pl_module, name, parametrization.chunks)
            sigma = trained_singular_values(trainer, parametrization)
            readings |= zip(names, sigma.reshape(len(names), -1, sigma.shape[-1]), strict=True)
        for name, (module, weight) in plain_weights(pl_module, self.dense).items():
            names = self._names(pl_module, name)
            sigma = dense_singular_values(module, weight, self._chunks(pl_module, name))
            readings |= zip(names, sigma.reshape(len(names), -1, sigma.shape[-1]), strict=True)
        return readings

    def summary(self, readings: dict[str, Tensor]) -> dict[str, float]:
        """The numbers to log for readings."""
        numbers = {}
        margins = []
        for name, sigma in readings.items():
            values = spectral_statistics(sigma, self.center)
            margins.append(values["spectral_margin"])
            for statistic in self.statistics:
                numbers[f"{statistic}{self.separator}{name}"] = values[statistic]
        if margins:
            numbers["spectral_margin"] = torch.tensor(margins, dtype=torch.float64).max().item()  # NaN where one is
        return numbers

    def _chunks(self, model: nn.Module, name: str) -> int:
        """In how many blocks a plain weight is read: one, as by ``singular_values``, but for its gates and groups."""
        return blocks_of(*owner_of(model, name)) if self.per_gate else 1

    def _names(self, model: nn.Module, name: str, blocks: int | None = None) -> list[str]:
        """What the readings of a weight are called: as the weight, or by gate if it has a block for each."""
        gates = gate_names(*owner_of(model, name)) if self.per_gate else ""
        if not gates or blocks not in (None, len(gates)):
            return [name]
        return [f"{name}.{gate}" for gate in gates]


def describe(parametrization: SVDParametrization) -> dict[str, Any]:
    """What a weight in SVD form is, in plain values."""
    sigma_map = parametrization.sigma_map
    low, high = torch.as_tensor(sigma_map.low), torch.as_tensor(sigma_map.high)
    return {
        "shape": [parametrization.chunks * parametrization.shape[0], parametrization.shape[1]],
        "reflectors": list(parametrization.reflectors),
        "sigma": repr(sigma_map),
        "low": low.min().item(),
        "high": high.max().item(),
    }
