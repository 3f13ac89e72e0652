"""Registered weights and optimizers: parameter groups for a new one, factors for one that was built before."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization import SVDParametrization
from spectral_param.registration import svd_parametrizations

Held = tuple[dict[str, Any], Tensor]
"""A group of an optimizer and a parameter in it."""

Likeness = tuple[tuple[int, ...], bool]
"""By what a weight of old is known again: its shape, and whether it is trained."""


def parameter_groups(
    model: nn.Module,
    *,
    weight_decay: float = 0.0,
    sigma_lr: float | None = None,
    sigma_weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Sorts the trained parameters of a model for an optimizer: reflectors, σ, and all others.

    Decay on reflectors would change no weight but, step by step, how far a learning rate turns them; they get none.
    Decay on σ is that of the weight where σ is :class:`~spectral_param.Unconstrained`, since ‖W‖² = Σσ²; other maps it
    pulls towards the σ of raw = 0.

    Args:
        model: any module.
        weight_decay: of the other parameters.
        sigma_lr: the learning rate of σ; ``None``: that of the optimizer.
        sigma_weight_decay: of the raw numbers of σ.

    Returns:
        Groups with ``"name"`` ("others", "reflectors", "sigma"), ``"params"``, ``"weight_decay"`` and, for σ, ``"lr"``;
        those without parameters are left out. Each parameter that requires a gradient is in one of them, once.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import parameter_groups, register_svd_parametrization
        >>> model = nn.Sequential(register_svd_parametrization(nn.Linear(4, 4)), nn.Linear(4, 2))
        >>> groups = parameter_groups(model, weight_decay=0.01, sigma_lr=1e-4)
        >>> [(group["name"], len(group["params"])) for group in groups]
        [('others', 3), ('reflectors', 2), ('sigma', 1)]
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.001, 0.001, 0.0001]
    """
    kinds = {}
    for _, parametrization in svd_parametrizations(model):
        raw = raw_sigma(parametrization)
        kinds.update({id(factor): "sigma" if factor is raw else "reflectors" for factor in parametrization.factors})
    groups: dict[str, dict[str, Any]] = {
        "others": {"params": [], "weight_decay": weight_decay},
        "reflectors": {"params": [], "weight_decay": 0.0},
        "sigma": {"params": [], "weight_decay": sigma_weight_decay},
    }
    if sigma_lr is not None:
        groups["sigma"]["lr"] = sigma_lr
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[kinds.get(id(parameter), "others")]["params"].append(parameter)
    return [{"name": name, **group} for name, group in groups.items() if group["params"]]


def add_factors_(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Puts the factors of registered weights into an optimizer that was built before they were registered.

    The optimizer still holds the weights of that time, which no forward reads any more. Each is replaced, in its group
    and with the settings of that group, by the factors that require a gradient; its momentum is dropped. A weight
    that the optimizer did not hold stays outside. Called again, nothing changes.

    Args:
        optimizer: any optimizer, changed in place.
        model: all that the optimizer trains.

    Returns:
        ``optimizer``.

    Raises:
        ValueError: if several weights have one shape, and which of them the optimizer held in which group cannot be
            told. Build a new optimizer then, with :func:`parameter_groups`.

    Example:
        >>> import torch
        >>> from spectral_param import add_factors_, register_svd_parametrization
        >>> layer = torch.nn.Linear(3, 3)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> _ = register_svd_parametrization(layer)
        >>> [tuple(parameter.shape) for parameter in add_factors_(optimizer, layer).param_groups[0]["params"]]
        [(6,), (3,), (6,), (3,)]
    """
    left = _parameters_without_model(optimizer, model)
    replaced: list[tuple[Held, SVDParametrization]] = []
    for likeness, weights in _weights_without_optimizer(optimizer, model).items():
        stale = left.get(likeness, [])
        if stale and (len(stale) != len(weights) or len({id(group) for group, _ in stale}) > 1):
            raise ValueError(
                f"optimizer: holds {len(stale)} parameters of shape {likeness[0]} that are not in the model, for the "
                f"weights {', '.join(name for name, _ in weights)}; which is which cannot be told, so build a new one."
            )
        replaced += zip(stale, (parametrization for _, parametrization in weights), strict=False)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for (group, parameter), parametrization in replaced:
        factors = [factor for factor in parametrization.factors if factor.requires_grad]
        place = next(i for i, held in enumerate(group["params"]) if held is parameter)
        group["params"][place : place + 1] = factors
        if "param_names" in group:
            group["param_names"][place : place + 1] = [names[id(factor)] for factor in factors]
        optimizer.state.pop(parameter, None)
    return optimizer


def raw_sigma(parametrization: SVDParametrization) -> Tensor | None:
    """The trained numbers of σ among the factors; ``None`` where σ is fixed.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization
        >>> from spectral_param.optimizers import raw_sigma
        >>> layer = register_svd_parametrization(nn.Linear(3, 2), init="orthogonal")
        >>> raw_sigma(layer.parametrizations.weight[0])
        Parameter containing:
        tensor([1., 1.], requires_grad=True)
    """
    place = parametrization._places[1]
    return parametrization.factors[place] if place >= 0 else None


def _weights_without_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[Likeness, list[tuple[str, SVDParametrization]]]:
    """Registered weights of which the optimizer holds no factor."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    found = defaultdict(list)
    for name, parametrization in svd_parametrizations(model):
        if not any(id(factor) in held for factor in parametrization.factors):
            is_trained = any(factor.requires_grad for factor in parametrization.factors)
            found[parametrization.matrices.weight_shape, is_trained].append((name, parametrization))
    return found


def _parameters_without_model(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[Likeness, list[Held]]:
    """Parameters of the optimizer that are not the model's, with their groups."""
    known = {id(parameter) for parameter in model.parameters()}
    found = defaultdict(list)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                found[tuple(parameter.shape), parameter.requires_grad].append((group, parameter))
    return found
