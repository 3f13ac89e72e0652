"""What the class of a registered module is taught: its forward, resets, loading, and refusals."""

from __future__ import annotations

import functools
import sys
from typing import Any

from torch import nn

from spectral_param.parametrization.lookup import parametrization_lists
from spectral_param.registration.injection import beside_base, watch
from spectral_param.registration.injection.matrix_free import without_weight
from spectral_param.registration.injection.plain_checkpoint import load_plain_weights
from spectral_param.registration.injection.recurrent import recurrent_members
from spectral_param.registration.injection.resetting import reset
from spectral_param.registration.injection.weight_property import in_forward

_FOLD = "fold them into plain ones first, with remove_svd_parametrization(model)."


def teach(base: Any) -> dict[str, Any]:
    """The members of a registered class, over those of the plain one."""
    members: dict[str, Any] = {
        "_plain_class": base,
        "register_parameter": _register_parameter,
        "_load_from_state_dict": functools.partialmethod(load_plain_weights, base),
        "_save_to_state_dict": _save_to_state_dict,
        "__prepare_scriptable__": _refuse_to_script,
        "qconfig": property(_has_no_qconfig, _refuse_to_quantize),
        "_distribute_module_applied": property(_refuse_tensor_parallelism),
    }
    if issubclass(base, nn.RNNBase):
        members |= recurrent_members(base)
    forward = in_forward(members.get("forward", base.forward), keep=issubclass(base, nn.MultiheadAttention))
    if base.forward is nn.Linear.forward:
        forward = without_weight(forward)
    elif base.forward in beside_base.FORWARDS:
        forward = beside_base.convolution(forward)
    elif _is_conv1d_of_transformers(base):
        forward = beside_base.conv1d_of_transformers(forward)
    members["forward"] = forward
    for name in ("reset_parameters", "_reset_parameters"):
        if hasattr(base, name):
            members[name] = functools.partialmethod(reset, base, name)
    return members


def plain_class(module: Any) -> Any:
    """The class that a registered module had before, also where ``fully_shard`` has put its own on top."""
    return module._plain_class


def _is_conv1d_of_transformers(base: type) -> bool:
    """Whether it is the layer of transformers that GPT-2 is made of."""
    return base.__name__ == "Conv1D" and base.__module__ == "transformers.pytorch_utils"


# ------------------------------------------------------------------------------------------------- state, refusals


def _save_to_state_dict(self: Any, *args: Any) -> None:
    watch.tell_of_writes(self)
    plain_class(self)._save_to_state_dict(self, *args)


def _register_parameter(self: Any, name: str, param: nn.Parameter | None) -> None:
    """``module.weight = nn.Parameter(W)`` assigns W, as it does to a plain module."""
    if param is not None and name in parametrization_lists(self):
        getattr(type(self), name).fset(self, param)  # setattr would come here again
    else:
        plain_class(self).register_parameter(self, name, param)


def _refuse_to_script(self: nn.Module) -> None:
    raise RuntimeError(f"torch.jit.script does not read computed weights: {_FOLD}")


def _has_no_qconfig(self: nn.Module) -> None:
    raise AttributeError("qconfig")


def _refuse_to_quantize(self: nn.Module, qconfig: Any) -> None:
    if qconfig is not None:
        raise RuntimeError(f"Quantization does not read computed weights: {_FOLD}")


def _refuse_tensor_parallelism(self: nn.Module) -> bool:
    """What ``distribute_module`` asks for before it touches a module; others find no such attribute."""
    if sys._getframe(1).f_code.co_name == "distribute_module":
        names = " and ".join(parametrization_lists(self))
        raise ValueError(
            f"module: {names} of {plain_class(self).__name__}, in SVD form, cannot be split over ranks by tensor "
            "parallelism; leave it out of the plan, shard it with fully_shard, or fold it first, with "
            "remove_svd_parametrization."
        )
    raise AttributeError("_distribute_module_applied")
