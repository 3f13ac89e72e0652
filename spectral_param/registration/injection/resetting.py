"""Resetting a registered module: its plain class draws plain weights, and registration starts from them."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from spectral_param.parametrization.lookup import parametrization_lists
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.injection.weight_property import fill


def reset(module: nn.Module, base: Any, name: str) -> None:
    """Resets in the order in which the plain module's parameters stand, and so with its random numbers, unwarned.

    Args:
        module: a registered module.
        base: its plain class.
        name: of the plain class's method.
    """
    lists = dict(parametrization_lists(module).items())
    with torch.no_grad():
        weights = {name: nn.Parameter(torch.empty_like(one())) for name, one in lists.items()}
    present = {**module._parameters, **weights}
    order = next(one[0].parameter_order for one in lists.values() if isinstance(one[0], SVDParametrization))
    names = [n for n in order if n in present] + [n for n in present if n not in order]

    plain = object.__new__(base)  # whatever arguments its own __new__ takes
    plain.__dict__ = {**module.__dict__, "_modules": dict(module._modules)}
    del plain._modules["parametrizations"]
    plain._parameters = {n: present[n] for n in names}
    getattr(base, name)(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for tensor_name, weight in weights.items():
            first = lists[tensor_name][0]
            if isinstance(first, SVDParametrization) and first.init == "orthogonal":
                fill(lists[tensor_name], first.starting_factors(weight))
            else:
                setattr(module, tensor_name, weight.detach())
