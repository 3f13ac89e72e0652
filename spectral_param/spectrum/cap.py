"""Holding the singular values of plain weights below a cap while an optimizer steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spectral_param.functional.convolution.geometry import geometry_of
from spectral_param.parametrization.blocks import blocks_of, matrices_of
from spectral_param.parametrization.stacked import on_top_of
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.sigma.level import number
from spectral_param.spectrum.dense.ceiling import Ceiling
from spectral_param.spectrum.dense.operator_ceiling import OperatorCeiling
from spectral_param.spectrum.operator import Images, check_convolutions, check_images, image_for
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights, plain_weights
from spectral_param.spectrum.schedule_free import averages_itself, check_averages, hold_

_REGISTERED = (
    "a weight in SVD form has a σ of its own, which a σ map holds below the cap, Bounded say, or "
    "clip_singular_values_(model, max=…) after each step, or SpectralClip(max=…)"
)


class _Held(NamedTuple):
    module: nn.Module
    tensor_name: str
    ceiling: Ceiling | OperatorCeiling


class SpectralCap:
    """Holds the singular values of plain weights at or below a cap, after every step of an optimizer, in any loop.

    After each step σ_max ≤ max (1 + tolerance) is certain, not estimated: a weight that is far from the edge costs one
    pass over it, one that is near a Gram matrix and its Cholesky decomposition, and one that is above is capped, its
    leading directions alone; see Note [Ceilings] in :mod:`spectral_param.spectrum.dense.ceiling`. Any optimizer will
    do, fused ones and ``torch.optim.Muon`` too; schedule-free ones have the point that they average held as well.
    Under DDP each rank does the same. Weights that ``fully_shard`` has spread are gathered, unless they are far from
    the edge; all ranks have to take part. Nothing has to be saved: what is held follows from the weights.

    Args:
        model: any module. Weights are found once, so build this after whatever replaces modules.
        max: the cap, positive.
        dense: name patterns of the plain weights to hold. A convolution is read as its (out, in·kh·kw) matrix, experts
            as a matrix each; see :func:`~spectral_param.singular_values`. Embeddings and heads are weights like others.
        tolerance: how far above the cap σ may be before it is moved there, relative.
        per_gate: each gate of an LSTM or GRU weight, each of q, k, v in attention, and each group of a convolution as a
            matrix of its own.
        operator: holds convolutions as maps of images: of one size for all, or of sizes by name patterns, as
            :func:`~spectral_param.image_sizes` finds them. See Note [Kernels below a cap] in
            :mod:`spectral_param.spectrum.dense.operator_ceiling`.

    Raises:
        TypeError: if ``max`` or ``tolerance`` is no number, patterns are no strings, or ``operator`` is something else.
        ValueError: if ``max`` or ``tolerance`` is not positive and finite, nothing matches, or an image does not suit
            its convolution.

    Warns:
        UserWarning: of weights in SVD form that the patterns name and whose σ may go above the cap: they are passed
            over.

    Example:
        >>> import torch
        >>> from spectral_param import SpectralCap, spectral_norm
        >>> layer = torch.nn.Linear(3, 3)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=10.0)
        >>> cap = SpectralCap(layer, max=1.0).attach(optimizer)
        >>> layer(torch.ones(3)).sum().backward()
        >>> optimizer.step()
        >>> spectral_norm(layer).item() <= 1.01
        True
    """

    def __init__(
        self,
        model: nn.Module,
        max: float,
        *,
        dense: str | Sequence[str] = "*",
        tolerance: float = 0.01,
        per_gate: bool = False,
        operator: Images | None = None,
    ) -> None:
        check_cap(max, tolerance)
        check_images(operator)
        check_convolutions(operator, model)
        patterns = as_patterns("dense", dense)
        self._held: dict[str, _Held] = {}
        self._handles: list[RemovableHandle] = []
        for name, (module, weight) in plain_weights(model, patterns).items():
            tensor_name = name.rpartition(".")[2]
            ceiling: Ceiling | OperatorCeiling
            if (image := image_for(operator, module, name)) is not None:
                ceiling = OperatorCeiling(geometry_of(module), image, max, tolerance)  # type: ignore[arg-type]
            else:
                matrices = matrices_of(module, weight, blocks_of(module, tensor_name) if per_gate else 1)
                ceiling = Ceiling(matrices, max, tolerance)
            self._held[name] = _Held(module, tensor_name, ceiling)
        uncapped = _registered_above(model, patterns, max * (1 + tolerance))
        if not self._held:
            raise ValueError(
                f"dense: expected patterns of plain weights, {', '.join(patterns)} matches none."
                + (f" Not held: {', '.join(uncapped)}; {_REGISTERED}." if uncapped else "")
            )
        if uncapped:
            warnings.warn(f"SpectralCap passes over {', '.join(uncapped)}; {_REGISTERED}.", stacklevel=2)

    @property
    def names(self) -> list[str]:
        """Names of the weights that are held."""
        return list(self._held)

    def attach(self, *optimizers: Optimizer) -> SpectralCap:
        """Caps the weights, and again after every step of these optimizers, until :meth:`detach`.

        Args:
            optimizers: all that step on the weights. Accelerate's wrappers are seen through.

        Returns:
            Itself.

        A copy or a pickle of an optimizer has none of the hooks of the first, so that no cap follows its steps; nor is
        a copy of a cap, which holds the copy of the model, attached to any: attach that.

        Raises:
            TypeError: for what is no optimizer.
            ValueError: for an optimizer that averages in a way that is not known.

        Warns:
            UserWarning: of held weights that require a gradient and are in none of the optimizers: whatever steps on
                them, or copies another tensor into them, is not followed by a cap.
        """
        found = tuple(getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers)
        for optimizer in found:
            if not callable(getattr(optimizer, "register_step_post_hook", None)):
                raise TypeError(f"optimizers: expected each to be an optimizer, got {type(optimizer).__name__}.")
        check_averages("SpectralCap", found)
        self.detach()
        stepped = set().union(*map(_parameters_of, found))
        idle = [
            name
            for name, held in self._held.items()
            if (weight := self._weight(name, held)).requires_grad and id(weight) not in stepped
        ]
        if idle:
            warnings.warn(f"SpectralCap: no optimizer holds {', '.join(idle)}.", stacklevel=2)
        self.hold_(found)

        def after_step(optimizer: Optimizer, *step: Any) -> None:
            self.hold_(found, optimizer)

        self._handles = [optimizer.register_step_post_hook(after_step) for optimizer in found]
        return self

    def detach(self) -> None:
        """Lets the optimizers go."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def hold_(self, optimizers: Iterable[Optimizer] = (), stepped: Optimizer | None = None) -> list[str]:
        """Caps the weights now.

        Args:
            optimizers: those that step on them; it matters for schedule-free ones alone, which average them.
            stepped: the one that has just stepped, so that only its weights are looked at; ``None``: all.

        Returns:
            The names of those that were above, and so were changed.
        """
        optimizers = tuple(optimizers)
        alone = not any(map(averages_itself, optimizers))
        changed = dict.fromkeys(self._held, False)

        def cap_(name: str, weight: nn.Parameter, ceiling: Ceiling | OperatorCeiling) -> None:
            changed[name] |= ceiling.hold_(weight)

        moved = None if stepped is None else _parameters_of(stepped)
        for name, held in self._held.items():
            weight = self._weight(name, held)
            if moved is not None and id(weight) not in moved:
                continue
            held.ceiling.remember = alone  # one copy cannot follow the two points of an average
            hold_(weight, optimizers, partial(cap_, name, weight, held.ceiling))
        return [name for name, is_changed in changed.items() if is_changed]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handles": []}  # hooks are of the optimizers that it is attached to

    @staticmethod
    def _weight(name: str, held: _Held) -> nn.Parameter:
        weight = held.module._parameters.get(held.tensor_name)
        if weight is None and f"{held.tensor_name}_orig" in held.module._parameters:
            raise ValueError(
                f"{name}: expected a parameter, got what pruning has put in its place; prune after training, or call "
                "torch.nn.utils.prune.remove first."
            )
        if weight is None:
            raise ValueError(f"{name}: expected the parameter that SpectralCap holds, got none; build it anew.")
        return weight


def _parameters_of(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _registered_above(model: nn.Module, patterns: Sequence[str], edge: float) -> list[str]:
    """The chosen weights in SVD form whose |σ| may be above an edge."""
    return [name for name, held in parametrized_weights(model, patterns).items() if _may_exceed(held, edge)]


def _may_exceed(held: SVDParametrization, edge: float) -> bool:
    if on_top_of(held):
        return True
    if isinstance(held, TurnedParametrization) and held.rank < min(held.shape):
        least = held.start[..., -1:]  # of the trained σ, at the start: the others of the base stay below
        if not least.numel() or bool((least > edge).any()):
            return True
    outside = (edge, math.inf), (-math.inf, -edge)
    return any(bool(torch.as_tensor(held.sigma_map.reaches(*span)).any()) for span in outside)


def check_cap(max: float, tolerance: float) -> None:
    """Raises ``TypeError`` unless both are numbers, ``ValueError`` unless they are positive and finite.

    Example:
        >>> from spectral_param.spectrum.cap import check_cap
        >>> check_cap(1.0, 0.01)
    """
    for name, value in (("max", max), ("tolerance", tolerance)):
        if not 0 < number(name, value) < math.inf:
            raise ValueError(f"{name}: expected a positive, finite number for plain weights, got {value}.")
