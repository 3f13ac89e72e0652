"""What a registered module needs beyond torch's own mechanism: copying, pickling, assigning, and one read a forward.

``torch.nn.utils.parametrize`` gives a module a class of its own with a property for the weight. Here that class also
learns

- to be copied and pickled: each copy gets a class of its own, so that removing from one leaves the other alone;
- to take an assignment into the factors that are there, so that optimizers and hooks keep their hold on them;
- to reset itself in its own way, keeping σ legal;
- for ``nn.RNN``, ``nn.LSTM``, ``nn.GRU``: to evaluate each weight once a forward (``recurrence.py``).
"""

from __future__ import annotations

import copy
import functools
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.weak import WeakTensorKeyDictionary

from spectral_param.parametrization.lookup import parametrization_lists
from spectral_param.registration.injection.matrix_free import without_weight
from spectral_param.registration.injection.plain_checkpoint import load_plain_weights
from spectral_param.registration.injection.recurrent import teach_recurrence
from spectral_param.registration.injection.weight_property import fill, in_forward, weight_property

if TYPE_CHECKING:
    from spectral_param.parametrization.svd import SVDParametrization

_successors: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""From a weight that was registered, which an optimizer may still hold, a weak reference to what took its place."""


def install(
    module: nn.Module,
    tensor_name: str,
    parametrization: SVDParametrization,
    start: Sequence[Tensor],
) -> None:
    """Puts the parametrization in the weight's place, its factors beginning at ``start``."""
    weight = module._parameters[tensor_name]
    _tell_of_losses(weight)
    parametrization.__dict__["parameter_order"] = _parameter_order(module)
    _register(module, tensor_name, parametrization, start)
    for factor in parametrization.factors:
        factor.__dict__.update(weight.__dict__)  # what users put on it, such as a mark for the optimizer
    _successors[weight] = weakref.ref(parametrization)
    _equip(module, tensor_name)
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()  # lets go of the old weight


def successor(weight: Tensor) -> SVDParametrization | None:
    """What took the place of a parameter that was registered, if that is what this tensor is."""
    reference = _successors.get(weight)
    return None if reference is None else reference()


def uninstall(module: nn.Module, tensor_name: str) -> None:
    """Puts a plain parameter with the present value back, where it was."""
    held = parametrization_lists(module)[tensor_name]
    if any(hasattr(p, "full_tensor") for p in held.parameters(recurse=False)):
        raise ValueError(f"module: {tensor_name!r} is spread over ranks by fully_shard; fold it before sharding.")
    order = held[0].parameter_order
    trained = any(p.requires_grad for p in held.parameters(recurse=False))
    with torch.inference_mode(False), torch.no_grad():
        value = nn.Parameter(held().detach().clone(), requires_grad=trained)
    value.__dict__.update(held[0].factors[0].__dict__)
    delattr(type(module), tensor_name)
    del parametrization_lists(module)[tensor_name]
    module.register_parameter(tensor_name, value)
    if not parametrize.is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
        if isinstance(module, nn.RNNBase):
            nn.RNNBase._init_flat_weights(module)
    present = module._parameters
    names = [n for n in order if n in present] + [n for n in present if n not in order]
    module._parameters = {name: present[name] for name in names}


def _tell_of_losses(weight: Any) -> None:
    hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks
    for name, there in (("gradient", weight.grad is not None), ("hooks", bool(hooks))):
        if there:
            warnings.warn(f"the {name} of the weight cannot be carried over to its factors.", stacklevel=4)


def _parameter_order(module: nn.Module) -> tuple[str, ...]:
    """The names of the module's parameters as they stood before any registration."""
    if parametrize.is_parametrized(module):
        for held in parametrization_lists(module).values():
            if hasattr(held[0], "parameter_order"):
                return held[0].parameter_order
    return tuple(module._parameters)


def _register(
    module: nn.Module,
    tensor_name: str,
    parametrization: SVDParametrization,
    start: Sequence[Tensor],
) -> None:
    """Torch's registration, with the factors found beforehand in place of a second fit."""
    weight = module._parameters[tensor_name]
    parametrization.__dict__["right_inverse"] = lambda _: list(start)
    try:
        parametrize.register_parametrization(module, tensor_name, parametrization, unsafe=True)
    except BaseException:
        if tensor_name not in module._parameters:  # torch has taken it away already
            module._parameters[tensor_name] = weight
        raise
    finally:
        del parametrization.__dict__["right_inverse"]
    held = parametrization_lists(module)[tensor_name]
    held.unsafe = False
    parametrization.__dict__["held_in"] = held  # beside the module tree, being above it


def _equip(module: nn.Module, tensor_name: str) -> None:
    """Teaches the class that torch made for this module."""
    cls: Any = type(module)
    setattr(cls, tensor_name, weight_property(tensor_name, getattr(cls, tensor_name).fget))
    if "__reduce_ex__" in cls.__dict__:
        return
    base = cls.__bases__[0]
    _teach_copying(cls, base)
    if issubclass(base, nn.RNNBase):
        teach_recurrence(cls, base)
    else:
        cls.forward = without_weight(base.forward) if base.forward is nn.Linear.forward else base.forward
    cls.forward = in_forward(cls.forward, keep=issubclass(base, nn.MultiheadAttention))
    cls.register_parameter = functools.partialmethod(_register_parameter, base)
    cls._load_from_state_dict = functools.partialmethod(load_plain_weights, base)
    cls.__prepare_scriptable__ = _refuse_to_script
    cls.qconfig = property(_has_no_qconfig, _refuse_to_quantize)
    for reset in ("reset_parameters", "_reset_parameters"):
        if hasattr(base, reset):
            setattr(cls, reset, functools.partialmethod(_reset, base, reset))


_FOLD = "fold them into plain ones first, with remove_svd_parametrization(model)."


def _register_parameter(self: nn.Module, base: type[nn.Module], name: str, param: nn.Parameter | None) -> None:
    """``module.weight = nn.Parameter(W)`` assigns W, as it does to a plain module."""
    if param is not None and name in parametrization_lists(self):
        setattr(self, name, param.detach())
    else:
        base.register_parameter(self, name, param)


def _refuse_to_script(self: nn.Module) -> None:
    raise RuntimeError(f"torch.jit.script does not read computed weights: {_FOLD}")


def _has_no_qconfig(self: nn.Module) -> None:
    raise AttributeError("qconfig")


def _refuse_to_quantize(self: nn.Module, qconfig: Any) -> None:
    if qconfig is not None:
        raise RuntimeError(f"Quantization does not read computed weights: {_FOLD}")


# --------------------------------------------------------------------------------------------------- copying, pickling


def _teach_copying(cls: Any, base: Any) -> None:
    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        return _bare, (base, *_names(self)), self.__getstate__()

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        if hasattr(base, "__deepcopy__"):
            twin = base.__deepcopy__(self, memo)
            return _with_own_class(twin, base, *_names(self)) if type(twin) is type(self) else twin
        twin = _bare(base, *_names(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    cls.__reduce_ex__ = reduce
    cls.__getstate__ = getattr(base, "__getstate__", lambda self: self.__dict__.copy())
    cls.__deepcopy__ = deepcopy


def _names(module: nn.Module) -> tuple[list[str], list[str]]:
    """The parametrized tensors of a module: all of them, and those that are ours."""
    lists = parametrization_lists(module)
    return list(lists), [name for name, held in lists.items() if hasattr(held[0], "starting_factors")]


def _bare(base: Any, tensor_names: Sequence[str], ours: Sequence[str]) -> Any:
    """An empty module with a parametrized class of its own, for a copy or a pickle to fill."""
    return _with_own_class(base.__new__(base), base, tensor_names, ours)


def _with_own_class(module: Any, base: Any, tensor_names: Sequence[str], ours: Sequence[str]) -> Any:
    module.__class__ = base
    parametrize._inject_new_class(module)
    for name in tensor_names:
        parametrize._inject_property(module, name)
    for name in ours:
        _equip(module, name)
    return module


# ----------------------------------------------------------------------------------------------------------- resetting


def _reset(module: nn.Module, base: Any, reset: str) -> None:
    """Lets the plain class fill plain weights, and starts from them as registration did, without its warnings."""
    lists = dict(parametrization_lists(module).items())
    plain = base.__new__(base)
    plain.__dict__ = {**module.__dict__, "_modules": dict(module._modules)}
    del plain._modules["parametrizations"]
    with torch.no_grad():
        weights = {name: nn.Parameter(torch.empty_like(held())) for name, held in lists.items()}
    plain.__dict__["_parameters"] = {**module._parameters, **weights}
    getattr(base, reset)(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name, weight in weights.items():
            first = lists[name][0]
            if getattr(first, "init", "weight") == "orthogonal":
                fill(lists[name], first.starting_factors(weight))
            else:
                setattr(module, name, weight.detach())
