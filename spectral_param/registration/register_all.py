"""Registering on many weights of a model in one call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.blocks import blocks_of, matrices_of
from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.mismatch import relative_difference
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.choosing import Place, Where, choose
from spectral_param.registration.equal_weights import found_together
from spectral_param.registration.injection.install import put_back
from spectral_param.registration.progress_line import progress_line
from spectral_param.registration.register import Replacement, planned
from spectral_param.registration.report import RegistrationReport, warn_of_changes
from spectral_param.sigma import SigmaMap
from spectral_param.torch_state.modes import has_numbers
from spectral_param.torch_state.precision import wide
from spectral_param.torch_state.quantized import numbers


def register_all(
    model: nn.Module,
    where: Where | None = None,
    *,
    reflectors: int | tuple[int, int] | None = None,
    sigma: SigmaMap | None = None,
    init: str = "weight",
    train: str = "all",
    base: str | None = None,
    rank: int | None = None,
) -> RegistrationReport:
    """Registers an SVD parametrization on all weights of a model that are picked, or on none if one fails.

    Each weight is cut into blocks as its module uses it: see
    :func:`~spectral_param.parametrization.blocks.blocks_of`. What is parametrized already is passed over, so that
    several calls can treat several parts of a model; so are tied weights, whatever ``where`` says, since each place
    would have factors of its own. The report names both. Layers that the model holds in plain lists, tuples and
    dictionaries are no part of it to torch, and are named there too. The opposite is
    :func:`~spectral_param.remove_svd_parametrization` of the model.

    On a terminal a line says how far it has come once it has taken five seconds.

    Args:
        model: any module, changed in place.
        where: which weights. ``None``: every parameter with "weight" in its name, or "proj" at its end, that acts as a
            matrix, or as a matrix for each expert, and that nobody else computes, such as a hook or a quantization; a
            module type, or a list or tuple of types: every parameter of two or more dimensions that is so called, of
            modules of these types; a predicate of a parameter's qualified name, like ``"encoder.fc.weight"``, and its
            module, asked for every parameter of two or more dimensions.
        reflectors: as for :func:`~spectral_param.register_svd_parametrization`, or as many as a weight can have.
        sigma: σ map, of which each weight has its own copy; ``None``: :class:`~spectral_param.Unconstrained`.
        init: ``"weight"``: start from the present weights; ``"orthogonal"``: U and V random, σ at the map's start.
        train: ``"all"``, ``"sigma"`` or ``"reflectors"``: what of each weight is trained.
        base: ``"frozen"``: the weights stay as they are, and what is trained turns them and moves their leading σ.
        rank: how many σ of each are trained then, or as many as a weight has.

    Returns:
        What was taken, how much it changed, and what was passed over for which reason.

    Raises:
        TypeError: as :func:`~spectral_param.register_svd_parametrization`, or for another kind of ``where``.
        ValueError: in the same way. The message names the weight. The model is then as it was.

    Warns:
        UserWarning: once for all, if too few reflectors change weights by more than 0.1 %, or σ lie outside the map's
            range.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_all
        >>> model = nn.Sequential(nn.Embedding(20, 8), nn.LSTM(8, 16), nn.Linear(16, 4))
        >>> register_all(model, where=(nn.LSTM, nn.Linear), reflectors=6, init="orthogonal")
        registered 3, passed over 4
          1.weight_ih_l0: 4 × 16×8, reflectors=(6, 6)
          1.weight_hh_l0: 4 × 16×16, reflectors=(6, 6)
          2.weight: 4×16, reflectors=(4, 4)
          passed over, not chosen: 0.weight
          passed over, a vector: 1.bias_ih_l0, 1.bias_hh_l0, 2.bias
          too small for reflectors=6: 2.weight
          to train at the rate of the plain model: parameter_groups(model, lr=…)
    """
    chosen, passed_over = choose(model, where, base)
    settings = {"sigma": sigma, "init": init, "train": train, "base": base}
    changed, asked = _register(chosen, reflectors, rank, settings)
    names = {place.name for place in chosen}
    taken = {name: parametrization for name, parametrization in svd_parametrizations(model) if name in names}
    return RegistrationReport(taken, passed_over, changed, asked)


def _register(
    chosen: Sequence[Place], reflectors: Any, rank: Any, settings: dict[str, Any]
) -> tuple[dict[str, float], dict[str, str]]:
    """Registers all or, should anything be raised, puts the parameters back that were there.

    Says what changed, and of weights that got fewer what was asked for.
    """
    wanted = {"reflectors": reflectors, "rank": rank}
    done: list[Replacement] = []
    changed: dict[str, float] = {}
    fewer: dict[str, str] = {}
    told: dict[str, list[warnings.WarningMessage]] = {}
    name = ""  # of the weight that an error is about
    try:
        replacements = []
        for place in chosen:
            name = f"{place.name}: "
            chunks = blocks_of(place.module, place.tensor_name)
            asked = _at_most(reflectors, rank, place, chunks, settings["base"])
            less = [f"{key}={value}" for key, value in wanted.items() if not _is_same(value, asked[key])]
            fewer |= {place.name: ", ".join(less)} if less else {}
            replacements.append(planned(place.module, place.tensor_name, chunks=chunks, **asked, **settings))
        found = found_together(replacements)
        with progress_line("registering", len(chosen)) as tell:
            for i, (place, replacement) in enumerate(zip(chosen, replacements, strict=True)):
                tell(i + 1)
                name = f"{place.name}: "
                with warnings.catch_warnings(record=True) as told[place.name]:
                    warnings.simplefilter("always")
                    replacement.carry_out(next(found))
                done.append(replacement)
                parametrization = SVDParametrization.alone_on(place.module, place.tensor_name)
                if parametrization is not None and settings["init"] == "weight" and not replacement.weight.is_meta:
                    changed[place.name] = _change(parametrization, replacement.weight)
        name = ""
        warn_of_changes(told, changed, settings["sigma"])
    except BaseException as error:
        for replacement in reversed(done):
            put_back(replacement.module, replacement.tensor_name, replacement.weight)
        if type(error) in (TypeError, ValueError):
            raise type(error)(f"{name}{error}") from error
        raise
    return changed, fewer


@torch.no_grad()
def _change(parametrization: SVDParametrization, weight: Tensor) -> float:
    if not has_numbers(weight):
        return 0.0
    return relative_difference(wide(parametrization(*parametrization.factors)), wide(numbers(weight)))


def _is_same(asked: Any, given: Any) -> bool:
    return asked is given or (tuple(asked) if isinstance(asked, list) else asked) == given


def _at_most(reflectors: Any, rank: Any, place: Place, chunks: int, base: str | None) -> dict[str, Any]:
    """The numbers asked for, or as many as the weight can have; what is no number is left to be refused."""
    asked = {"reflectors": reflectors, "rank": rank}
    weight = place.weight
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return asked
    matrices = matrices_of(place.module, weight, chunks)
    k = min(matrices.p, matrices.q)
    most = (matrices.p // 2 * 2, matrices.q // 2 * 2) if base == "frozen" else (k, k)
    if isinstance(reflectors, Integral):
        left, right = (min(reflectors, limit) for limit in most)
        asked["reflectors"] = left if left == right else (left, right)
    elif isinstance(reflectors, (list, tuple)) and [isinstance(m, Integral) for m in reflectors] == [True, True]:
        asked["reflectors"] = tuple(map(min, reflectors, most))
    if isinstance(rank, Integral):
        asked["rank"] = min(rank, k)
    return asked
