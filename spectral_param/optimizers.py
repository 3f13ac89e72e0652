"""Registered weights and optimizers: parameter groups for a new one, factors for one that was built before."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.step_rates import ADAFACTOR, ADAM, SGD, StepRates
from spectral_param.registration.injection.successors import successor
from spectral_param.sigma import Unconstrained
from spectral_param.sigma.level import number
from spectral_param.spectrum.reflector_lengths import LENGTH_BY_SIGMA, length_by_sigma

STEP_RATES = {
    **dict.fromkeys(("adam", "adamw", "nadam", "radam", "adamax", "adagrad", "rmsprop", "lion"), ADAM),
    **dict.fromkeys(("sgd", "asgd"), SGD),
    "adafactor": ADAFACTOR,
}
"""How an optimizer moves what it trains, by the name of its class."""

_OWN_STEPS = "which finds the length of its steps by itself: give it model.parameters()"
_WITHOUT_RATES = {
    "muon": "which takes plain matrices: give it those of 'others', and the factors, which are none, to AdamW",
    **dict.fromkeys(("lbfgs", "adadelta", "rprop"), _OWN_STEPS),
}


def parameter_groups(
    model: nn.Module,
    *,
    lr: float | None = None,
    optimizer: str | type[torch.optim.Optimizer] = "adam",
    weight_decay: float = 0.0,
    sigma_lr: float | None = None,
    sigma_weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Sorts the trained parameters of a model for an optimizer, so that it trains much as the plain model did.

    With ``lr``, the learning rate of the plain model, σ and the reflectors of each weight get the multiple of it that
    moves the weight as far in a step as the plain one moved: about 1.5 √max(p, q) for σ under Adam. So that it stays as
    far when σ grows, the optimizer then keeps the lengths of reflectors in proportion to σ, by powers of two, which
    changes no weight (but none that averages itself does, and no copy of an optimizer). Without ``lr``, all have the
    rate of the optimizer. The multiples come from the weights as they are: call it once they are registered and, if
    they are to be, loaded and renormalized. Which groups there are depends on names and shapes alone, so the state of
    an optimizer fits the groups of any later run; schedulers multiply the rate of each.

    ``weight_decay`` is the plain model's, too. With ``lr``, σ is pulled down by it as ‖W‖ was, where σ is
    :class:`~spectral_param.Unconstrained`, since ‖W‖² = Σσ²; other maps it would pull towards the σ of raw = 0.
    Reflectors have none: it would change no weight but, step by step, how far a learning rate turns them. Rules by
    dimension, as ``p.dim() >= 2``, know none of this: factors have one dimension, or two in chunks.

    Args:
        model: any module.
        lr: the plain model's learning rate; ``None``: that of the optimizer for all.
        optimizer: what the groups are for, where ``lr`` is given: its class, or the name of one that moves parameters
            alike: by the rate in each entry, "adam", as Adam and its kin, RMSprop, Adagrad and Lion do; in proportion
            to gradients, "sgd", with or without momentum; in proportion to themselves, "adafactor".
        weight_decay: of the other parameters and, with ``lr``, of σ, in the measure of W; decoupled, as AdamW has it.
            Each group has a decay, so that one given to the optimizer itself changes nothing.
        sigma_lr: the learning rate of σ; ``None``: that found by ``lr``, or that of the optimizer.
        sigma_weight_decay: of the raw numbers of σ; ``None``: that found by ``lr`` and ``weight_decay``, or 0.

    Returns:
        Groups with ``"name"`` ("others", "reflectors …", "sigma …"), ``"params"``, ``"weight_decay"`` and, where they
        are known, ``"lr"`` and, for reflectors, ``"length_by_sigma"``; those without parameters are left out. With
        ``lr``, weights whose names differ in numbers alone share their groups if they are of one shape. Each parameter
        that requires a gradient is in one, once.

    Raises:
        ValueError: for an optimizer whose rule is not known, with ``lr`` a weight on the meta device, or for a rate or
            decay that is negative or not finite.
        TypeError: if ``optimizer`` is neither a name nor a class, or a rate or decay no number.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import parameter_groups, register_all
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        >>> _ = register_all(model, init="orthogonal")
        >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3, weight_decay=0.1))
        >>> for group in optimizer.param_groups:
        ...     if not group["name"].startswith("reflectors"):
        ...         print(group["name"], group["lr"], round(group["weight_decay"], 4))
        others 0.001 0.1
        sigma *.weight 64×64 0.012 0.0083
        sigma *.weight 16×64 0.012 0.0083
    """
    rates = {"lr": lr, "sigma_lr": sigma_lr, "sigma_weight_decay": sigma_weight_decay}
    given = {name: value for name, value in rates.items() if value is not None} | {"weight_decay": weight_decay}
    for name, value in given.items():
        if not 0 <= number(name, value) < math.inf:
            raise ValueError(f"{name}: expected a finite number of at least 0, got {value}.")
    kind = step_rates(optimizer)
    kept = list(_factors(model, None if lr is None else kind))
    ours = {id(factor.tensor) for factor in kept}
    others = [p for p in model.parameters() if p.requires_grad and id(p) not in ours]
    groups: list[dict[str, Any]] = [{"name": "others", "params": others, "weight_decay": weight_decay}]
    if lr is not None:
        groups[0]["lr"] = lr
    for part in ("reflectors", "sigma"):
        alike: dict[Any, list[_Factor]] = {}
        for factor in kept:
            if factor.part == part and factor.tensor.requires_grad:
                alike.setdefault(factor.alike, []).append(factor)
        for (name, *_), factors in alike.items():
            group: dict[str, Any] = {"name": f"{part} {name}".strip(), "params": [factor.tensor for factor in factors]}
            if lengths := [factor.length for factor in factors if factor.length is not None]:
                group[LENGTH_BY_SIGMA] = median(lengths)
            rate = None if lr is None else lr * median(factor.multiple for factor in factors)
            decay = 0.0
            if part == "sigma":
                rate = rate if sigma_lr is None else sigma_lr
                if lr and rate and factors[0].decays:
                    decay = weight_decay * lr / rate  # a step takes off the rate times the decay
                decay = decay if sigma_weight_decay is None else sigma_weight_decay
            groups.append(group | {"weight_decay": decay} | ({} if rate is None else {"lr": rate}))
    _number(groups)
    return [group for group in groups if group["params"]]


def step_rates(optimizer: str | type[torch.optim.Optimizer]) -> StepRates:
    """How an optimizer moves what it trains; the errors are those of :func:`parameter_groups`.

    Example:
        >>> import torch
        >>> from spectral_param.optimizers import step_rates
        >>> step_rates(torch.optim.AdamW) is step_rates("adam")
        True
    """
    if isinstance(optimizer, str):
        name = optimizer
    elif isinstance(optimizer, type):
        name = optimizer.__name__
    else:
        raise TypeError(f"optimizer: expected a class or a name, got {type(optimizer).__name__}.")
    if name.lower() in _WITHOUT_RATES:
        raise ValueError(
            f"optimizer: expected one that goes by a learning rate, got {name}, {_WITHOUT_RATES[name.lower()]}."
        )
    if name.lower() not in STEP_RATES:
        raise ValueError(f"optimizer: expected one of {', '.join(STEP_RATES)}, got {name}; name one that moves alike.")
    return STEP_RATES[name.lower()]


class _Factor(NamedTuple):
    """A factor, what part of its weight it is, and which others share its group."""

    tensor: Tensor
    part: str
    alike: tuple[Any, ...]
    multiple: float
    length: float | None
    decays: bool


def _factors(model: nn.Module, rates: StepRates | None) -> Iterator[_Factor]:
    """The factors of all registered weights; without ``rates`` those of a part are all alike."""
    for name, held in svd_parametrizations(model):
        p, q = held.shape
        blocks = f"{held.chunks}×{p}×{q}" if held.chunks > 1 else f"{p}×{q}"
        kind = held.reflectors, held.init, type(held.sigma_map)  # no number that training changes
        multiples = rates.of(held) if rates else (1.0,) * len(held.factors)
        names = {side.place: side.name for side in held.sides} | {held.layout.places[1]: ""}
        for place in sorted(place for place in names if place >= 0):
            factor, is_reflectors = held.factors[place], bool(names[place])
            label = " ".join(filter(None, (names[place], re.sub(r"\d+", "*", name), blocks)))
            yield _Factor(
                factor,
                "reflectors" if is_reflectors else "sigma",
                (label, *kind) if rates else ("",),
                multiples[place],
                length_by_sigma(factor, held) if rates and is_reflectors else None,
                isinstance(held.sigma_map, Unconstrained),
            )


def _number(groups: Sequence[dict[str, Any]]) -> None:
    """Tells groups of one name apart, as callbacks that log rates by name require."""
    for name, count in Counter(group["name"] for group in groups).items():
        if count > 1:
            for i, group in enumerate(group for group in groups if group["name"] == name):
                group["name"] = f"{name} ({i + 1})"


def add_factors_(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Puts the factors of registered weights into an optimizer that was built before they were registered.

    The optimizer still holds the weights of that time, which no forward reads any more. Each is replaced, in its group
    and with the settings of that group, by the factors that require a gradient; its momentum is dropped. A weight
    that the optimizer did not hold stays outside. Called again, nothing changes.

    Args:
        optimizer: any optimizer, changed in place.
        model: the registered model, not a copy of it.

    Returns:
        ``optimizer``.

    Raises:
        ValueError: for an LBFGS that has stepped, which remembers all parameters as one vector.

    Example:
        >>> import torch
        >>> from spectral_param import add_factors_, register_svd_parametrization
        >>> layer = torch.nn.Linear(3, 3)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> _ = register_svd_parametrization(layer)
        >>> [tuple(parameter.shape) for parameter in add_factors_(optimizer, layer).param_groups[0]["params"]]
        [(6,), (3,), (6,), (3,)]
    """
    if isinstance(optimizer, torch.optim.LBFGS) and optimizer.state:
        raise ValueError(
            "optimizer: expected one that goes by each parameter, got an LBFGS that has stepped; build it anew."
        )
    ours = [parametrization for _, parametrization in svd_parametrizations(model)]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in list(group["params"]):
            parametrization = successor(parameter)
            if parametrization is None or not any(parametrization is one for one in ours):
                continue
            factors = [factor for factor in parametrization.factors if factor.requires_grad]
            place = next(i for i, held in enumerate(group["params"]) if held is parameter)
            group["params"][place : place + 1] = factors
            if "param_names" in group:
                group["param_names"][place : place + 1] = [names[id(factor)] for factor in factors]
            optimizer.state.pop(parameter, None)
            if factors and isinstance(optimizer, torch.optim.Adagrad):  # whose older versions make state at the start
                start = group["initial_accumulator_value"]
                optimizer.state.update(torch.optim.Adagrad(factors, initial_accumulator_value=start).state)
    return optimizer
