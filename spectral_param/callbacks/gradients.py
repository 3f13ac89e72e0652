"""Watching how large gradients are: through time, at layers, and at weights in SVD form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from spectral_param.callbacks.patterns import warn_unmatched
from spectral_param.callbacks.private import current_step
from spectral_param.callbacks.recorder import Recorder
from spectral_param.callbacks.sharded_sigma import has_flat_shards
from spectral_param.callbacks.through_time.norms import (
    mean_over_ranks,
    norms_over_ranks,
    series,
    square,
    squares_through_time,
    times_of,
)
from spectral_param.callbacks.through_time.taps import RECURRENT, Taps, is_compiled
from spectral_param.parametrization.lookup import named_modules
from spectral_param.report.history import LOSS
from spectral_param.spectrum.patterns import as_patterns, matches, owner_of, parametrized_weights
from spectral_param.torch_state.shards import is_shard


class GradientNormMonitor(Recorder):
    """Logs and keeps ‖∂L/∂h⁽ᵗ⁾‖ of recurrent layers, and gradient norms of layers and of weights in SVD form.

    L is the loss that ``training_step`` returns, whatever precision scaling and accumulation make of it. Norms are
    taken over the whole batch, all ranks together, and logged as

    - ``grad_norm-{layer}.h.t{t}``: the total derivative by the state h⁽ᵗ⁾ of a recurrent layer, h⁽⁰⁾ being the state
      before the first step (Figures 1 and 4 of the paper); ``.c`` for the cell state of an LSTM, ``.h_l{k}`` for the
      layers of a stack, where h⁽ᵗ⁾ is all of them and each a variable of its own;
    - ``grad_norm-{module}.output``: the derivative by what a module returns, over all its calls;
    - ``grad_norm-{weight}``: the derivative by a weight W in SVD form, of which ``W.grad`` is ``None``, also where the
      layer does without W.

    Training is not touched: on a watched step hooks note what passes, and after the backward the recurrent layer alone
    is run again from one t to the next (see :mod:`~spectral_param.callbacks.through_time.adjoint`), which costs about
    one more forward and backward of it. A compiled model runs its watched steps uncompiled, the same but for
    rounding. Under accumulation the first batch of a step is watched, in manual optimization the first backward.

    Bidirectional layers, packed sequences and stacks with dropout are read at t = 0 alone. With dropout that run
    repeats the random numbers of the forward, except in cuDNN, which keeps its own.

    Args:
        times: at which t, from 0 to T, negative ones from the end (-1 is T); or a number n of times spread evenly from
            0 to T, for the heat map, of which only t = 0 is logged.
        recurrent: name patterns of the recurrent layers to watch: ``nn.RNN``, ``nn.LSTM``, ``nn.GRU``, ``SpectralRNN``.
        layers: name patterns of modules whose output to watch, such as the first layer of a deep network.
        weights: name patterns of the weights in SVD form to watch.
        every_n_steps: see :class:`~spectral_param.callbacks.recorder.Recorder`, as the options below.
        every_n_epochs: reads at the start of every n-th epoch instead.
        prog_bar: shows the first number in the progress bar.
        separator: between ``grad_norm`` and the name.
        max_readings: the most readings to keep.
        report: writes ``spectral_report.html`` at the end of fit.

    Raises:
        TypeError: if patterns are no strings or times no integers.
        ValueError: for no times, or a bad interval; at fit start for recurrent layers that are sharded.

    Warns:
        UserWarning: at fit start, of patterns that match nothing; later, of a layer that can be read at t = 0 alone,
            of what is not read since ``training_step`` differentiates gradients that pass through it or changes in
            place what came out of it, and of sequences of several lengths, whose t the heat map cannot show.

    Example:
        >>> from spectral_param.callbacks import GradientNormMonitor
        >>> monitor = GradientNormMonitor(times=32, layers="encoder.0", every_n_steps=20)
    """

    def __init__(
        self,
        *,
        times: int | Sequence[int] = (0,),
        recurrent: str | Sequence[str] = "*",
        layers: str | Sequence[str] = (),
        weights: str | Sequence[str] = "*",
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
        given = tuple(times) if isinstance(times, Iterable) else (times,)
        if not all(isinstance(t, Integral) for t in given):
            raise TypeError(f"times: expected integers, got {times!r}.")
        self.times = tuple(map(int, given)) if isinstance(times, Iterable) else int(times)
        if self.times == () or (isinstance(self.times, int) and self.times < 1):
            raise ValueError(f"times: expected at least one, got {times!r}.")
        self.recurrent = as_patterns("recurrent", recurrent)
        self.layers = as_patterns("layers", layers)
        self.weights = as_patterns("weights", weights)
        self.time_axes: dict[str, list[int]] = {}
        self._told: set[str] = set()  # names of what was not read
        self._is_told_of_lengths = False
        self._loss: Tensor | None = None
        self._taps: Taps | None = None

    @property
    def state_key(self) -> str:
        """Tells monitors of different things apart in a checkpoint."""
        return self._generate_state_key(
            times=self.times,
            recurrent=self.recurrent,
            layers=self.layers,
            weights=self.weights,
            every_n_steps=self.every_n_steps,
            every_n_epochs=self.every_n_epochs,
        )

    # ------------------------------------------------------------------------------------------------------- hooks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says what there is not to watch."""
        super().on_train_start(trainer, pl_module)
        self._close()
        warn_unmatched("recurrent", self.recurrent, _recurrent(pl_module, ["*"]), "recurrent layer")
        warn_unmatched("layers", self.layers, _modules(pl_module, ["*"]), "module")
        warn_unmatched("weights", self.weights, parametrized_weights(pl_module, ["*"]), "weight in SVD form")
        for name, module in _recurrent(pl_module, self.recurrent).items():
            if _is_sharded(trainer, module):
                raise ValueError(f"recurrent: expected layers that are whole on every rank, {name} is sharded.")

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begins to listen."""
        self._close()
        if not self.is_due(trainer, batch_idx):
            return
        self._taps = Taps()
        if is_compiled(pl_module):
            self._taps.run_eagerly()
        for name, module in _recurrent(pl_module, self.recurrent).items():
            self._taps.on_recurrent(name, module)
        for name, module in _modules(pl_module, self.layers).items():
            self._taps.on_output(f"{name}.output", module)
        for name, parametrization in parametrized_weights(pl_module, self.weights).items():
            layer, tensor_name = owner_of(pl_module, name)
            if isinstance(layer, RECURRENT) and not _is_sharded(trainer, layer):
                self._taps.on_recurrent(name.removesuffix(f".{tensor_name}"), layer)
            self._taps.on_weight(name, layer, tensor_name, parametrization)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Stops listening to forwards: those of a backward are recomputations."""
        if self._taps is not None:
            self._taps.stop()
            self._loss = loss.detach()

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the gradients back through time, logs and keeps their norms."""
        taps = self._taps
        if taps is None:
            return
        self._close()
        scale = _loss_scale(trainer)
        norms = {name: norm / scale for name, norm in self._norms(trainer, pl_module, taps).items()}
        numbers = self._numbers(norms)
        self.log_now(trainer, pl_module, numbers, headline=next(iter(numbers), ""))
        if self._loss is not None:
            norms[LOSS] = trainer.strategy.reduce(self._loss / scale, reduce_op="mean")
        self.history.record(current_step(trainer), norms)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stops listening where there was no backward."""
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stops listening."""
        self._close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stops listening."""
        self._close()

    def _close(self) -> None:
        if self._taps is not None:
            self._taps.close()
        self._taps = None

    def state_dict(self) -> dict[str, Any]:
        """The history and which t its columns are (-1: none), as CPU tensors and plain values."""
        return super().state_dict() | {"times": self.time_axes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes both up again."""
        super().load_state_dict(state_dict)
        self.time_axes = state_dict["times"]

    # ------------------------------------------------------------------------------------------------------- norms

    def _norms(self, trainer: Trainer, model: LightningModule, taps: Taps) -> dict[str, Tensor]:
        """Norms of the gradients as they came, by name: float64 on the CPU, the same on all ranks."""
        squares: dict[str, Tensor] = {}
        modules = dict(named_modules(model))
        for name in taps.calls:
            found = self._through_time(name, modules[name], taps)
            squares |= found if matches(name, self.recurrent) else {}
        for name in _modules(model, self.layers):
            squares[f"{name}.output"] = taps.squares.get(f"{name}.output", square(None))
        norms = norms_over_ranks(trainer, squares)
        for name, parametrization in parametrized_weights(model, self.weights).items():
            size = parametrization.chunks * math.prod(parametrization.shape)
            norms[name] = square(mean_over_ranks(trainer, taps.gradients.get(name), size)).sqrt()
        for name, reason in taps.unheard.items():  # all that is made of what was not heard whole
            missing = {name, *taps.weights.get(name, {}).values()}
            missing |= {*series(name, modules[name])} if name in taps.calls else set()
            for key in missing & norms.keys():
                norms[key] = torch.full_like(norms[key], torch.nan)
            if name not in self._told:
                self._told.add(name)
                rank_zero_warn(f"{name}: not read, since {reason}.")
        return norms

    def _through_time(self, name: str, layer: nn.Module, taps: Taps) -> dict[str, Tensor]:
        """‖∂L/∂h⁽ᵗ⁾‖² at the chosen times, over all calls of a layer, by series; adds ∂L/∂W to the taps."""
        names = series(name, layer)
        width = self.times if isinstance(self.times, int) else len(self.times)
        total = torch.full((len(names), width), 0.0 if taps.calls[name] else torch.nan, dtype=torch.float64)
        for call in taps.calls[name]:
            times = times_of(self.times, call.length)
            if not call.can_be_cut and any(times):
                rank_zero_warn(f"{name} is read at t = 0 alone: it is bidirectional, drops out or has packed input.")
            squares, by_weight = squares_through_time(call, times, call.weights)
            total += squares
            for tensor_name, gradient in by_weight.items():
                taps.add(taps.weights[name][tensor_name], gradient)
            axis = [-1 if t is None else t for t in times]
            if self.time_axes.get(names[0], axis) != axis and not self._is_told_of_lengths:
                self._is_told_of_lengths = True
                rank_zero_warn(f"{name}: sequences have several lengths, so that a row's t are not those of another's.")
            self.time_axes |= dict.fromkeys(names, axis)
        return dict(zip(names, total, strict=True))

    def _numbers(self, norms: dict[str, Tensor]) -> dict[str, float]:
        """The norms to log, by metric name; not those that are missing."""
        labels = [0] if isinstance(self.times, int) else self.times
        numbers = {}
        for name, norm in norms.items():
            if norm.dim() == 0:
                numbers[f"grad_norm{self.separator}{name}"] = norm.item()
            else:
                for i, t in enumerate(labels):
                    numbers[f"grad_norm{self.separator}{name}.t{t}"] = norm[i].item()
        return {name: number for name, number in numbers.items() if not math.isnan(number)}


def _recurrent(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    return {name: module for name, module in _modules(model, patterns).items() if isinstance(module, RECURRENT)}


def _modules(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    return {name: module for name, module in named_modules(model) if name and matches(name, patterns)}


def _is_sharded(trainer: Trainer, module: nn.Module) -> bool:
    return has_flat_shards(trainer) or any(map(is_shard, module.parameters()))


def _loss_scale(trainer: Trainer) -> float:
    """What the loss was multiplied by before its backward: by the precision plugin, and for accumulation."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return (scaler.get_scale() if scaler is not None else 1.0) / trainer.accumulate_grad_batches
