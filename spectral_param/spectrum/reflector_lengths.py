"""Reflectors kept as long, by their σ, as they were: so that a step turns W no further as σ grows.

Note [Lengths]
    A turn by θ moves W by θ σ, where a step of a plain W moves it as far whatever its σ; and σ grows, in a first layer
    by ten times in 300 steps. What the groups of :func:`~spectral_param.parameter_groups` found at the start would
    then turn W ten times too far, and what it learns would drown: reflectors have to turn by θ ~ 1/σ. The length of a
    reflector is free, W does not depend on it, and it has θ as its inverse under Adam, and as its inverse square under
    SGD, whose gradient grows with σ: both turn by 1/σ if ‖u‖ ~ σ. So once σ, the root mean square of all, has left
    the length behind by 2^¾, the reflectors are multiplied by the power of two that is nearest, which takes no bit of
    theirs or of W.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from spectral_param.parametrization.step_rates import LEAST_SIGMA
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.spectrum.schedule_free import averages_itself
from spectral_param.torch_state.shards import own_part, whole
from spectral_param.torch_state.users_line import warn

LENGTH_BY_SIGMA = "length_by_sigma"
"""What a group says of its reflectors: the Frobenius norm that a weight's have, by the root mean square of its σ."""

_LEFT_BEHIND = 0.75  # more than one half, or noise in σ would double and halve them in turn

_told: weakref.WeakSet[Optimizer] = weakref.WeakSet()

_holders: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""From packed reflectors, a weak reference to the parametrization they are of."""


def length_by_sigma(factor: Tensor, parametrization: SVDParametrization) -> float | None:
    """How long packed reflectors are, by their σ, and a note that they are to stay so; ``None`` where σ stays itself.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, svd_parametrizations
        >>> from spectral_param.spectrum.reflector_lengths import length_by_sigma
        >>> layer = register_svd_parametrization(torch.nn.Linear(4, 4), init="orthogonal")
        >>> [(_, held)] = svd_parametrizations(layer)
        >>> with torch.no_grad():
        ...     _ = held.factors[0].div_(held.factors[0].norm())
        >>> round(length_by_sigma(held.factors[0], held), 4)  # σ are 1
        1.0
    """
    if isinstance(parametrization, TurnedParametrization) or parametrization.raw_sigma is None:
        return None  # the σ that a frozen base is turned with are its own
    _holders[factor] = weakref.ref(parametrization)
    return _norm(factor.detach()).item() / max(_size_of_sigma(parametrization).item(), LEAST_SIGMA)


@torch.no_grad()
def _after_a_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Keeps the lengths of the reflectors that have just been stepped; what averages itself holds other points too."""
    for group in optimizer.param_groups:
        if group.get(LENGTH_BY_SIGMA) is not None and not averages_itself(optimizer):
            pairs = [(factor, _holders[factor]()) for factor in group["params"] if factor in _holders]
            if not pairs:
                _tell_once(optimizer)
            alive = [(factor, held) for factor, held in pairs if held is not None and held.raw_sigma is not None]
            if alive:
                _keep_lengths_(alive, group[LENGTH_BY_SIGMA])


def _tell_once(optimizer: Optimizer) -> None:
    if optimizer not in _told:
        _told.add(optimizer)
        warn(
            f"{type(optimizer).__name__} trains copies of the reflectors that parameter_groups was given, whose "
            "lengths do not grow with σ; build it anew from parameter_groups(model, lr=…) and load its state_dict."
        )


def _keep_lengths_(held: list[tuple[Tensor, SVDParametrization]], by_sigma: float) -> None:
    """Multiplies each by a power of two, or by 1, on its device, which is not waited for."""
    first = held[0][0]
    norms = torch.stack([_norm(factor).to(first.device) for factor, _ in held])
    sigma = torch.stack([_size_of_sigma(parametrization).to(first.device) for _, parametrization in held])
    exponent = torch.log2(by_sigma * sigma.clamp(min=LEAST_SIGMA) / norms)
    is_behind = exponent.isfinite() & (exponent.abs() > _LEFT_BEHIND)
    scales = torch.where(is_behind, exponent.round(), 0.0).exp2()
    for (factor, _), scale in zip(held, scales.unbind(), strict=True):
        own_part(factor).mul_(scale.to(factor.device))


def _norm(tensor: Tensor) -> Tensor:
    return whole(torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)))


def _size_of_sigma(parametrization: SVDParametrization) -> Tensor:
    raw = parametrization.raw_sigma
    assert raw is not None
    sigma = parametrization.sigma_of(whole(raw))
    return _norm(sigma) / math.sqrt(sigma.numel())


register_optimizer_step_post_hook(_after_a_step)
