"""Registered weights and optimizers: parameter groups for a new one, factors for one that was built before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.registration.injection.successors import successor


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
        raw = parametrization.raw_sigma
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
        model: the registered model, not a copy of it.

    Returns:
        ``optimizer``.

    Example:
        >>> import torch
        >>> from spectral_param import add_factors_, register_svd_parametrization
        >>> layer = torch.nn.Linear(3, 3)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> _ = register_svd_parametrization(layer)
        >>> [tuple(parameter.shape) for parameter in add_factors_(optimizer, layer).param_groups[0]["params"]]
        [(6,), (3,), (6,), (3,)]
    """
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
    return optimizer
