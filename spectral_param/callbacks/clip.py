"""Holding singular values in a range while a model trains."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import is_
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from spectral_param.callbacks.averages import averaged_models, averaging_callbacks
from spectral_param.callbacks.patterns import warn_unmatched, warn_unpruned, warn_untrained
from spectral_param.callbacks.sharded_sigma import has_flat_shards
from spectral_param.parametrization.blocks import blocks_of, matrices_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import clipping
from spectral_param.spectrum.cap import SpectralCap, check_cap
from spectral_param.spectrum.dense.projection import project_
from spectral_param.spectrum.operator import Images, check_convolutions, check_images, image_for
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights, plain_weights
from spectral_param.spectrum.schedule_free import averages_itself, check_averages, hold_
from spectral_param.torch_state.shards import is_shard


class SpectralClip(Callback):
    """Moves singular values into [min, max], before training and after every step of every optimizer.

    It hooks the steps themselves of whatever optimizers the Trainer has, so that nothing in between sees a σ outside:
    not another callback, a checkpoint, an averaged model, nor the second step of a batch in manual optimization.
    Optimizers, layers and registrations that come during training are held from their first step on. Each rank clips
    what it holds, elementwise, without communication. For ``Unconstrained`` σ is clamped; for other maps the raw number
    is moved to where the map gives the nearest σ. With ``min`` above 0 a σ that a step takes through 0 returns to the
    edge from which it came, so that averages of steps (``EMAWeightAveraging``, ``StochasticWeightAveraging``) are in
    range as well; schedule-free optimizers have their averaged point clipped beside the present one. Adam's moments are
    left alone: they belong to a raw number that moves by less than the step that has just been taken.

    Args:
        min: the least singular value to leave, at least 0.
        max: the greatest.
        weights: name patterns of the weights to hold.
        dense: name patterns of plain weights to hold as well, read as :func:`~spectral_param.singular_values` reads
            them. With ``min=0`` σ_max ≤ max (1 + ``tolerance``) is certain after each step, for little, as
            :class:`~spectral_param.SpectralCap` has it; with ``min`` above 0 it takes a ``torch.linalg.svd`` of each a
            step.
        tolerance: how far above ``max`` σ of the ``dense`` ones may be before it is moved there, relative.
        per_gate: reads each gate, and each group of a convolution, of the ``dense`` ones as a matrix of its own.
        operator: with ``dense``, holds plain convolutions as maps of images: (height, width) for all, or by name
            patterns as :func:`~spectral_param.image_sizes` finds them; kernels are clipped at each frequency and cut
            back to their size until σ_max ≤ max (1 + ``tolerance``).
        project_dense: holds the plain weights that ``weights`` names as well, to rounding, by a ``torch.linalg.svd`` of
            each a step, whatever ``min`` is.
        renormalize: also gives reflectors back their unit length after each step. W stays as it is but for
            rounding (1e-6). Moments are left alone: a gradient is orthogonal to its reflector, so one
            step changes the length in second order only, by less than the noise of the moments.

    Raises:
        TypeError: if ``min`` or ``max`` is no number, patterns are no strings, or ``operator`` is something else.
        ValueError: if not 0 ≤ min ≤ max, for neither without ``renormalize``, or with ``dense`` and ``min=0`` if
            ``max`` is 0 or infinite; for ``operator`` without ``dense``, with ``min`` above 0, or at fit start for what
            is not in the model; at fit start if a σ map reaches no value in [min, max], for plain weights under
            ``FSDPStrategy`` and ``renormalize`` on any sharded parameters, of which no rank holds a whole column, for
            plain weights with ``min`` above 0 where weights are averaged, and for optimizers that average in a way that
            is not known.

    Warns:
        UserWarning: at fit start, of patterns that match nothing, of a model with nothing to clip, and of weights whose
            factors no optimizer holds.

    Example:
        >>> from spectral_param.callbacks import SpectralClip
        >>> SpectralClip(0.9, 1.1, weights="rnn.*").max
        1.1
    """

    def __init__(
        self,
        min: float = 0.0,
        max: float = math.inf,
        *,
        weights: str | Sequence[str] = "*",
        dense: str | Sequence[str] = (),
        tolerance: float = 0.01,
        per_gate: bool = False,
        operator: Images | None = None,
        project_dense: bool = False,
        renormalize: bool = False,
    ) -> None:
        min, max = clipping.checked_range(min, max)
        self.min = min
        self.max = max
        self.weights = as_patterns("weights", weights)
        self.dense = as_patterns("dense", dense)
        self.tolerance = tolerance
        self.per_gate = per_gate
        if self.dense and min == 0:
            check_cap(max, tolerance)
        if min == 0 and max == math.inf and not renormalize:
            raise ValueError("min, max: expected one of them, or renormalize=True, got none.")
        check_images(operator)
        if operator is not None and (min > 0 or not self.dense):
            raise ValueError("operator: expected None with min above 0, and without dense, whose kernels it is for.")
        self.operator = operator
        self.project_dense = project_dense
        self.renormalize = renormalize
        self._handles: list[RemovableHandle] = []
        self._held: list[Tensor] = []  # by the optimizers
        self._trained: dict[str, SVDParametrization] = {}
        self._hold: Callable[[Sequence[Optimizer], Optimizer | None], None] = _nothing

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Checks that what is asked can be done, before anything is trained."""
        trained = parametrized_weights(pl_module, self.weights)
        projected = plain_weights(pl_module, self.weights) if self.project_dense else {}
        warn_unmatched("weights", self.weights, [*trained, *projected], "weight to clip")
        dense = plain_weights(pl_module, self.dense)
        warn_unmatched("dense", self.dense, dense, "plain weight")
        if "*" in self.weights and not (trained or projected or dense):
            rank_zero_warn("SpectralClip has nothing to clip: no weight is in SVD form, and dense names no other.")
        check_convolutions(self.operator, pl_module)
        for name, (module, _) in dense.items():
            image_for(self.operator, module, name)
        for parametrization in trained.values():
            parametrization.check_clip(self.min, self.max)
        flat = has_flat_shards(trainer)
        for option, asked, sharded in (
            ("project_dense", self.project_dense, flat),
            ("renormalize", self.renormalize, flat or any(map(is_shard, pl_module.parameters()))),
        ):
            if asked and sharded:
                raise ValueError(
                    f"{option}: expected False for a sharded model, no rank of which holds a whole column."
                )
        if self.dense and flat:
            raise ValueError("dense: expected no pattern under FSDPStrategy, whose flat shards have no columns.")
        self._check_averages(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Clips what training begins with, averages too, and hooks whatever optimizers the Trainer has."""
        warn_untrained(pl_module, trainer.optimizers)
        warn_unpruned(trainer, pl_module)
        for average in averaged_models(trainer):
            for parametrization in parametrized_weights(average, self.weights).values():
                parametrization.clip_(self.min, self.max)
            self._hold_plain(average)((), None)
        self._unhook()
        self._follow(trainer, pl_module)
        self._clip_all(trainer.optimizers, None, {})
        sides: dict[str, Tensor] = {}

        def before(stepped: Optimizer, *step: Any) -> None:
            if any(stepped is own for own in trainer.optimizers):
                hook(stepped)
                self._follow(trainer, pl_module)
                if self.min > 0:
                    raws = {name: raw for name, p in self._trained.items() if (raw := p.raw_sigma) is not None}
                    sides.update({n: clipping.side_of(self._trained[n].sigma_map, raw) for n, raw in raws.items()})

        def clip(stepped: Optimizer, *step: Any) -> None:
            self._follow(trainer, pl_module)  # once more, for what has come within the step's closure
            self._clip_all(trainer.optimizers, stepped, sides)
            sides.clear()

        hooked: list[Optimizer] = []

        def hook(optimizer: Optimizer) -> None:
            if not any(optimizer is own for own in hooked):
                hooked.append(optimizer)
                self._handles.append(optimizer.register_step_post_hook(clip))

        self._handles.append(register_optimizer_step_pre_hook(before))
        for optimizer in trainer.optimizers:
            hook(optimizer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets the optimizers go."""
        self._unhook()

    def _follow(self, trainer: Trainer, model: LightningModule) -> None:
        """Takes the model's weights anew where the optimizers have others than before, as of a layer that has grown."""
        held = [p for optimizer in trainer.optimizers for group in optimizer.param_groups for p in group["params"]]
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            self._held = held
            self._trained = parametrized_weights(model, self.weights)
            self._hold = self._hold_plain(model)

    def _clip_all(self, optimizers: Sequence[Optimizer], stepped: Optimizer | None, sides: dict[str, Tensor]) -> None:
        for name, parametrization in self._trained.items():
            self._clip(parametrization, optimizers, sides.get(name))
        self._hold(optimizers, stepped)

    def _clip(self, parametrization: SVDParametrization, optimizers: Sequence[Optimizer], side: Tensor | None) -> None:
        """Clips a weight in SVD form after a step, σ on the side where it was before the step."""
        raw = parametrization.raw_sigma

        def clip_() -> None:
            if raw is not None and side is not None:
                raw.copy_(clipping.returned(parametrization.sigma_map, raw, side, self.min))
            parametrization.clip_(self.min, self.max)

        if raw is None:
            clip_()
        else:
            hold_(raw, optimizers, clip_)
        if self.renormalize:
            parametrization.renormalize_()

    def _check_averages(self, trainer: Trainer) -> None:
        """Refuses averages that would leave the range."""
        averaging = [*averaging_callbacks(trainer), *filter(averages_itself, trainer.optimizers)]
        for option, asked in (("project_dense", self.project_dense), ("dense", self.dense)):
            if asked and self.min > 0 and averaging:
                raise ValueError(
                    f"{option}: expected min=0 beside {type(averaging[0]).__name__}, whose averages of plain weights "
                    "can have any smaller σ; register these weights, or leave the averaging."
                )
        check_averages("SpectralClip", trainer.optimizers)
        for optimizer in filter(averages_itself, trainer.optimizers):
            if self.renormalize:
                name = type(optimizer).__name__
                raise ValueError(f"renormalize: expected False beside {name}, which averages reflectors of any length.")

    def _hold_plain(self, model: nn.Module) -> Callable[[Sequence[Optimizer], Optimizer | None], None]:
        """What moves σ of the plain weights of a model into range."""
        exactly = plain_weights(model, self.weights) if self.project_dense else {}
        dense = plain_weights(model, self.dense)
        projected = [(weight, matrices_of(module, weight)) for module, weight in exactly.values()]
        if self.min > 0:
            chunks = {name: blocks_of(module, name.rpartition(".")[2]) for name, (module, _) in dense.items()}
            projected += [
                (weight, matrices_of(module, weight, chunks[name] if self.per_gate else 1))
                for name, (module, weight) in dense.items()
            ]
        cap = None
        if self.min == 0 and dense:
            cap = SpectralCap(
                model,
                self.max,
                dense=[*map(glob.escape, dense)],  # those alone: the ones in SVD form are clipped here
                tolerance=self.tolerance,
                per_gate=self.per_gate,
                operator=self.operator,
            )

        def hold(optimizers: Sequence[Optimizer], stepped: Optimizer | None) -> None:
            for weight, matrices in projected:
                hold_(weight, optimizers, partial(project_, weight, matrices, self.min, self.max))
            if cap is not None:
                cap.hold_(optimizers, stepped)

        return hold

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._held, self._trained, self._hold = [], [], {}, _nothing


def _nothing(optimizers: Sequence[Optimizer], stepped: Optimizer | None) -> None:
    """What there is to hold of plain weights before training."""
