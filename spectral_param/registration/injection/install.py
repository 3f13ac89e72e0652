"""Putting a parametrization in a weight's place, and a plain weight back in the place of a parametrization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.parametrization.lookup import parametrization_lists, registered_names
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.injection import matrix_optimizers, successors, watch  # noqa: F401
from spectral_param.registration.injection.shared_class import shared_class
from spectral_param.registration.injection.sole_holder import check_not_wrapped
from spectral_param.registration.injection.svd_list import SVDList
from spectral_param.registration.injection.teaching import plain_class
from spectral_param.torch_state.private import fill_flat_weights
from spectral_param.torch_state.shards import is_shard
from spectral_param.torch_state.users_line import warn


def install(module: nn.Module, tensor_name: str, parametrization: SVDParametrization, start: Sequence[Tensor]) -> None:
    """Puts the parametrization in the weight's place, its factors beginning at ``start``."""
    weight = module._parameters[tensor_name]
    assert weight is not None
    base = plain_class(module) if registered_names(module) else _base_of(module)
    order = _parameter_order(module)
    _tell_of_losses(weight)
    _register(module, tensor_name, parametrization, list(start))
    parametrization.attach(parametrization_lists(module)[tensor_name], order)
    _set_class(module, base)
    for factor in parametrization.factors:
        factor.__dict__.update(weight.__dict__)  # what users put on it, such as a mark for the optimizer
    successors.succeed(weight, parametrization)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()  # lets go of the old weight


def put_back(module: nn.Module, tensor_name: str, weight: nn.Parameter) -> None:
    """Undoes a registration, the very parameter of before in its place."""
    uninstall(module, tensor_name)
    setattr(module, tensor_name, weight)
    successors.forget(weight)


def uninstall(module: nn.Module, tensor_name: str) -> None:
    """Puts a plain parameter with the present value back, where it was."""
    held = parametrization_lists(module)[tensor_name]
    first: SVDParametrization = held[0]
    if any(map(is_shard, held.parameters(recurse=False))):
        raise ValueError(f"module: {tensor_name!r} is spread over ranks by fully_shard; fold it before sharding.")
    if first.is_off:
        raise ValueError(f"module: {tensor_name!r} is without its adapter for now; fold it after without_adapter.")
    check_not_wrapped(module, tensor_name, held)
    watch.tell_of_writes(module)
    base = plain_class(module)
    trained = any(p.requires_grad for p in held.parameters(recurse=False))
    with torch.inference_mode(False), torch.no_grad():
        value = nn.Parameter(held().detach().clone(), requires_grad=trained)
    value.__dict__.update(first.factors[0].__dict__)
    successors.retire(first, f"{tensor_name} of {base.__name__}")
    del parametrization_lists(module)[tensor_name]
    if len(parametrization_lists(module)):
        _set_class(module, base)
    else:
        del module.parametrizations
        module.__class__ = base
    module.register_parameter(tensor_name, value)
    if isinstance(module, nn.RNNBase) and not parametrize.is_parametrized(module):
        fill_flat_weights(module)
    present = module._parameters
    order = first.parameter_order
    names = [n for n in order if n in present] + [n for n in present if n not in order]
    module._parameters = {name: present[name] for name in names}


def _base_of(module: nn.Module) -> type[nn.Module]:
    """The plain class of a module that may be parametrized by others already."""
    return parametrize.type_before_parametrizations(module)


def _set_class(module: nn.Module, base: type[nn.Module]) -> None:
    names = tuple(parametrization_lists(module))
    module.__class__ = shared_class(base, names, tuple(registered_names(module)))


def _tell_of_losses(weight: Any) -> None:
    hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks
    for name, there, remedy in (
        ("gradient", weight.grad is not None, "register after zero_grad()"),
        ("hooks", bool(hooks), "add them to the factors"),
    ):
        if there:
            warn(f"the {name} of the weight cannot be carried over to its factors: {remedy}.")


def _parameter_order(module: nn.Module) -> tuple[str, ...]:
    """The names of the module's parameters as they stood before any registration."""
    for name in registered_names(module):
        return parametrization_lists(module)[name][0].parameter_order
    return tuple(module._parameters)


def _register(module: nn.Module, tensor_name: str, parametrization: SVDParametrization, start: list[Tensor]) -> None:
    """Torch's registration, with the factors found beforehand in place of a second fit."""
    weight = module._parameters[tensor_name]
    parametrization.start_at(start)
    try:
        parametrize.register_parametrization(module, tensor_name, parametrization, unsafe=True)
    except BaseException:
        if tensor_name not in module._parameters:  # torch has taken it away already
            module._parameters[tensor_name] = weight
        raise
    finally:
        parametrization.start_at(None)
    held = parametrization_lists(module)[tensor_name]
    held.unsafe = False
    held.__class__ = SVDList
    held.__module__ = parametrize.ParametrizationList.__module__  # to fx a leaf, as torch's own
