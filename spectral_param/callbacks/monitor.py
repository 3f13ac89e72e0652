"""Watching the singular values of a model in training."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from spectral_param.callbacks.averages import averaging_callbacks
from spectral_param.callbacks.histograms import write_histograms
from spectral_param.callbacks.logging import write
from spectral_param.callbacks.patterns import hint_at_rates, warn_unmatched, warn_unpruned, warn_untrained
from spectral_param.callbacks.private import callbacks_of, current_step
from spectral_param.callbacks.recorder import Recorder
from spectral_param.callbacks.sharded_sigma import has_flat_shards, trained_singular_values
from spectral_param.report.history import LOSS
from spectral_param.report.watch import Watch, to_keep
from spectral_param.spectrum.operator import Images
from spectral_param.spectrum.patterns import parametrized_weights, plain_weights
from spectral_param.spectrum.statistics import STATISTICS


class SpectralMonitor(Recorder):
    """Logs and keeps the singular values of a model's weights.

    For each weight it logs ``{statistic}-{weight}``, for instance ``sigma_max-rnn.weight_hh_l0``, and for the whole
    model ``spectral_margin``, the largest margin of all, which is the one to give to ``ModelCheckpoint`` or the
    progress bar. See :func:`spectral_statistics` for the statistics. Reading a weight in SVD form does not build it and
    costs microseconds; a plain one costs a ``torch.linalg.svdvals`` (0.6, 21, 150 ms for n = 128, 512, 1024 on one CPU
    core), and where that adds up is read whole at every tenth reading or fewer. In between its ``sigma_max`` and, where
    asked for, ``stable_rank`` are logged, from a few products with it, and no ``spectral_margin`` of the whole model.

    ``history`` holds every σ that was read, by weight name, together with the loss of the batch that followed. It is
    saved in checkpoints and resumed. Under ``ddp_spawn`` it does not come back to the launching process; read the
    checkpoint.

    Args:
        weights: name patterns of the weights in SVD form to watch.
        dense: name patterns of plain weights to watch too, for instance ``"*.weight_hh_l*"``, read as
            :func:`~spectral_param.singular_values` reads them: a kernel of a convolution as its (out, in·kh·kw) matrix.
        dense_every: at which readings all σ of plain weights are computed, counted from the first, which is one;
            ``None``: at each where that is about 50 ms of work or less for all of them, else at every tenth or fewer
            where weights are wider than 200: every 26th of 512.
        per_gate: each gate of an LSTM or GRU weight, and each of q, k, v in attention, as a weight of its own, named
            ``{weight}.{gate}``, and each group of a plain convolution as a block of its own. Weights in SVD form need
            ``chunks`` for that.
        statistics: which to log of :func:`spectral_statistics` and :func:`shape_statistics`.
        center: what margins are measured from.
        operator: convolutions that are read as maps of images instead: of one size, (height, width), or of sizes by
            name patterns, as :func:`~spectral_param.image_sizes` finds them. Exact on circles and small images, upper
            bounds elsewhere (``exact=False`` of :func:`~spectral_param.singular_values`); at most 1,024 of them are
            kept, the largest and the smallest among them, and statistics are of these.
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
            flat shards have no singular values, and for images of no convolution.

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
        dense_every: int | None = None,
        per_gate: bool = False,
        statistics: Sequence[str] = STATISTICS,
        center: float = 1.0,
        operator: Images | None = None,
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
        self.watch = Watch(
            weights=weights,
            dense=dense,
            dense_every=dense_every,
            per_gate=per_gate,
            statistics=statistics,
            center=center,
            operator=operator,
            separator=separator,
        )
        self.weights, self.dense, self.dense_every = self.watch.weights, self.watch.dense, dense_every
        self.per_gate, self.statistics, self.center = per_gate, self.watch.statistics, self.watch.center
        self.histograms = histograms
        self.described: dict[str, dict[str, Any]] = {}
        self._pending: dict[str, Tensor] | None = None

    @property
    def state_key(self) -> str:
        """Tells monitors of different weights, or from different centers, apart in a checkpoint."""
        on_images = {} if self.watch.operator is None else {"operator": self.watch.operator}
        center = {} if self.center == 1 else {"center": self.center}
        return self._generate_state_key(
            **on_images,
            **center,
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
        if callbacks_of(trainer, SpectralMonitor)[0] is self:
            hint_at_rates(pl_module, trainer.optimizers)
        warn_unmatched("weights", self.weights, parametrized_weights(pl_module, self.weights), "weight in SVD form")
        warn_unmatched("dense", self.dense, plain_weights(pl_module, self.dense), "plain weight")
        self.watch.begin()
        self.described = self.watch.describe(pl_module)
        if not self.described:
            rank_zero_warn("SpectralMonitor has nothing to watch: no weight is in SVD form, and dense names no other.")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Reads σ before the step."""
        if self.is_due(trainer, batch_idx):
            if self.watch.is_whole(pl_module):
                self._pending = self.read(trainer, pl_module)
                numbers = self.summary(self._pending)
            else:
                self._pending, numbers = self.watch.glance(pl_module, partial(trained_singular_values, trainer))
            self.log_now(trainer, pl_module, numbers, "spectral_margin")
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
        self.history.record(current_step(trainer), to_keep(self._pending, self.described))
        self._pending = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads what training arrived at."""
        self._read_end(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reads averages, which have taken the weights' place when training ended."""
        if averaging_callbacks(trainer) and len(self.history):
            self._read_end(trainer, pl_module)
        super().on_fit_end(trainer, pl_module)

    def _read_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        reading = self.read(trainer, pl_module)
        write(trainer, self.summary(reading))
        self.history.record(current_step(trainer), to_keep(reading, self.described))

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
        return self.watch.read(pl_module, partial(trained_singular_values, trainer))

    def summary(self, readings: dict[str, Tensor]) -> dict[str, float]:
        """The numbers to log for readings."""
        return self.watch.summary(readings)
