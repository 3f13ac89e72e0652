"""A band that widens, narrows or moves while a model trains."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spectral_param.callbacks.averages import averaged_models
from spectral_param.callbacks.patterns import warn_unmatched
from spectral_param.callbacks.private import callbacks_of, current_step
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import Band, SigmaMap
from spectral_param.sigma.level import finite, number
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights
from spectral_param.spectrum.schedule_free import hold_
from spectral_param.torch_state.precision import wide

Schedule = Mapping[int, float] | Callable[[int], float]
"""Numbers by epoch or step, or a function of it."""


class BandSchedule(Callback):
    """Lets radius and center of ``Band`` follow a schedule over steps or epochs, for instance tight first, wider later.

    σ stays where it is when the band changes: the raw numbers are found anew for the new band, W with them by rounding
    alone, which raw numbers in half precision, as under ``precision="bf16-true"``, have more of at each move. Only a σ
    that the new band leaves outside moves, to 2 % of the width inside the edge. Averages of the model that Lightning's
    callbacks or a schedule-free optimizer keep move along. The optimizer's moments are left alone; dσ/draw grows with
    the radius, to which Adam adapts.

    Checkpoints hold the present bands, in this callback's state and beside the weights, and the Trainer puts them back
    wherever it loads one: fit, validate, test and predict, of a checkpoint with ``save_weights_only=True`` too. A model
    loaded without this callback has the band that its code gives it, and warns where that is another, unless it was
    given as a tensor, say ``Band(torch.full((k,), 0.01))``, which is saved with the model. ``torch.compile`` compiles
    anew for every new number but not for tensors.

    Args:
        radius: of the bands: milestones {step: value}, linear between them and constant outside, or a function of the
            step; ``None``: as it is.
        center: of the bands, in the same way.
        interval: what is counted, ``"step"`` (optimizer steps, as Lightning counts them for loggers) or ``"epoch"``.
        weights: name patterns of the weights whose bands follow; those with other σ maps are passed over.

    Raises:
        TypeError: if a schedule is neither milestones nor a function, or one of theirs is no number.
        ValueError: if nothing is scheduled, there are no milestones, ``interval`` is unknown, or a number is not
            finite or a radius not positive; of a function when it comes to that.

    Warns:
        UserWarning: at fit start, of patterns that match no weight in a ``Band``, and of a model without one; of a
            checkpoint of older versions that has not the bands of its numbers, of a schedule of other ``weights``.

    Example:
        >>> from spectral_param.callbacks import BandSchedule
        >>> schedule = BandSchedule(radius={0: 0.01, 1000: 0.01, 2000: 0.1})
        >>> value_at(schedule.radius, 1500)
        0.055
    """

    def __init__(
        self,
        radius: Schedule | None = None,
        center: Schedule | None = None,
        *,
        interval: Literal["step", "epoch"] = "step",
        weights: str | Sequence[str] = "*",
    ) -> None:
        if radius is None and center is None:
            raise ValueError("radius, center: expected a schedule for one of them, got None for both.")
        for name, schedule in (("radius", radius), ("center", center)):
            if not (schedule is None or isinstance(schedule, Mapping) or callable(schedule)):
                expected = "milestones, say {0: 0.01, 1000: 0.1}, or a function of the step"
                raise TypeError(f"{name}: expected {expected}, got {type(schedule).__name__}.")
            if isinstance(schedule, Mapping) and not schedule:
                raise ValueError(f"{name}: expected milestones, got none.")
            for time, value in schedule.items() if isinstance(schedule, Mapping) else ():
                if math.isnan(number(name, time, "milestones at numbers")):
                    raise ValueError(f"{name}: expected milestones at numbers, got nan.")
                _checked(name, value, time)
        if interval not in ("step", "epoch"):
            raise ValueError(f"interval: expected 'step' or 'epoch', got {interval!r}.")
        self.radius = radius
        self.center = center
        self.interval = interval
        self.weights = as_patterns("weights", weights)
        self._bands: dict[str, dict[str, float]] = {}
        self._hooks: list[RemovableHandle] = []

    @property
    def state_key(self) -> str:
        """Tells schedules of different weights, of radius and of center, by step and by epoch apart in a checkpoint."""
        what = {} if self.radius is not None else {"of": "center"}
        when = {} if self.interval == "step" else {"interval": self.interval}
        return self._generate_state_key(weights=self.weights, **what, **when)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Tells bands that a checkpoint's numbers may belong to others, which this callback then puts back."""
        self._unhook()
        before, after = (partial(_expect_others, self.weights, expect) for expect in (True, False))
        self._hooks = [
            pl_module.register_load_state_dict_pre_hook(before),
            pl_module.register_load_state_dict_post_hook(after),
        ]

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets the module go."""
        self._unhook()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Lets the module go."""
        self._unhook()

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Says which patterns match nothing."""
        banded = _banded(pl_module, self.weights)
        warn_unmatched("weights", self.weights, banded, "weight in a Band")
        if "*" in self.weights and not banded:
            rank_zero_warn("BandSchedule has nothing to move: no weight is in a Band.")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gives averages that a checkpoint has brought the band of their numbers, which is the model's."""
        banded = _banded(pl_module, self.weights)
        for average in averaged_models(trainer):
            for name, parametrization in _banded(average, self.weights).items():
                if name in banded:
                    _set(parametrization.sigma_map, _levels(banded[name].sigma_map, ("radius", "center")))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Moves the bands on, counting epochs."""
        if self.interval == "epoch":
            self._move_on(trainer, pl_module, trainer.current_epoch)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Moves the bands on, counting steps."""
        if self.interval == "step":
            self._move_on(trainer, pl_module, current_step(trainer))

    def _move_on(self, trainer: Trainer, model: nn.Module, time: int) -> None:
        levels = {
            name: _checked(name, value_at(schedule, time), time)
            for name, schedule in (("radius", self.radius), ("center", self.center))
            if schedule is not None
        }
        chosen = _banded(model, self.weights)
        averages = (_banded(average, self.weights) for average in averaged_models(trainer))
        move_bands_([p for banded in (chosen, *averages) for p in banded.values()], levels, trainer.optimizers)
        self._bands = dict.fromkeys(chosen, levels)

    def state_dict(self) -> dict[str, Any]:
        """The bands by name of the weight, as plain numbers."""
        return {"bands": self._bands}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Puts the bands back that the loaded raw numbers belong to."""
        self._bands = checkpoint.get("callbacks", {}).get(self.state_key, {}).get("bands", {})
        for name, parametrization in _banded(pl_module, self.weights).items():
            _set(parametrization.sigma_map, self._bands.get(name, {}))
        schedules = callbacks_of(trainer, BandSchedule)
        if schedules[-1] is self:  # what one of several has moved the others put back as well
            for name, parametrization in _banded(pl_module, [p for s in schedules for p in s.weights]).items():
                parametrization.sigma_map.warn_of_others(name)


def value_at(schedule: Schedule, time: int) -> float:
    """The value of a schedule at a step or epoch.

    Example:
        >>> from spectral_param.callbacks.schedule import value_at
        >>> value_at({10: 1.0, 20: 3.0}, 15), value_at({10: 1.0, 20: 3.0}, 50)
        (2.0, 3.0)
    """
    if not isinstance(schedule, Mapping):
        return schedule(time)
    times = sorted(schedule)
    after = bisect_right(times, time)
    if after == 0 or after == len(times):
        return schedule[times[max(after - 1, 0)]]
    begin, end = times[after - 1], times[after]
    share = (time - begin) / (end - begin)
    return (1 - share) * schedule[begin] + share * schedule[end]


def _checked(name: str, value: Any, time: float) -> float:
    level = finite(f"{name} at {time}", value)
    if name == "radius" and level <= 0:
        raise ValueError(f"radius at {time}: expected a positive number, got {level}.")
    return level


@torch.no_grad()
def move_bands_(
    parametrizations: Sequence[SVDParametrization], levels: Mapping[str, float], optimizers: Sequence[Optimizer] = ()
) -> None:
    """Gives bands another radius or center and keeps σ where it is, in place; σ outside move just inside.

    Args:
        parametrizations: of weights whose σ map is a ``Band``.
        levels: ``{"radius": r}``, ``{"center": c}`` or both.
        optimizers: of the training. Where one averages by itself, σ stays at the two points that it averages.
    """
    moved = [p for p in parametrizations if any(_differs(getattr(p.sigma_map, n), v) for n, v in levels.items())]
    before = [_levels(p.sigma_map, levels) for p in moved]
    for parametrization, present in zip(moved, before, strict=True):
        if (raw := parametrization.raw_sigma) is not None:
            hold_(raw, optimizers, partial(_express_anew_, parametrization.sigma_map, raw, present, levels))


def _levels(band: nn.Module, names: Iterable[str]) -> dict[str, float | Tensor]:
    present = {name: getattr(band, name) for name in names}
    return {name: level.clone() if isinstance(level, Tensor) else level for name, level in present.items()}


def _express_anew_(
    band: SigmaMap, raw: Tensor, before: Mapping[str, float | Tensor], levels: Mapping[str, float]
) -> None:
    _set(band, before)
    sigma = band(wide(raw))
    _set(band, levels)
    raw.copy_(band.recover(sigma))


def _banded(model: nn.Module, patterns: Sequence[str]) -> dict[str, SVDParametrization]:
    chosen = parametrized_weights(model, patterns)
    return {name: p for name, p in chosen.items() if isinstance(p.sigma_map, Band)}


def _expect_others(patterns: Sequence[str], expect: bool, model: nn.Module, *_: Any) -> None:
    for parametrization in _banded(model, patterns).values():
        parametrization.sigma_map.follows_schedule = expect


def _differs(level: float | Tensor, value: float) -> bool:
    differs = level != value  # of a tensor, in its own dtype
    return bool(differs.any()) if isinstance(differs, Tensor) else differs


def _set(band: nn.Module, levels: Mapping[str, float | Tensor]) -> None:
    for name, value in levels.items():
        present = getattr(band, name)
        if isinstance(present, Tensor):
            present.copy_(value) if isinstance(value, Tensor) else present.fill_(value)
        else:
            setattr(band, name, value)
