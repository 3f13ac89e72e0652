"""Code that would lose what it does to a computed weight, and is told so before it begins.

It is known by where it stands, since torch and others write to a weight in ways that no attribute of it sees.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple

import torch

from spectral_param.torch_state.private import tracing_state


class _Caller(NamedTuple):
    module: str  # a module's name, or how it begins where it ends in a dot
    functions: tuple[str, ...]  # none: any
    remedy: str


_FOLD = "remove_svd_parametrization(model) first"
_LENDS_NOT = (
    _Caller("torch.nn.utils.weight_norm", (), f"use torch.nn.utils.parametrizations, or {_FOLD}"),
    _Caller("torch.nn.utils.spectral_norm", (), f"hold σ by a σ map such as Bounded(1.0), or {_FOLD}"),
    _Caller("torch.nn.utils.prune", (), _FOLD),
    _Caller("torch.nn.utils.fusion", (), _FOLD),
    _Caller(
        "peft.tuners.",
        ("merge", "unmerge", "pissa_init", "corda_init", "olora_init", "loftq_init", "lora_ga_init"),
        _FOLD,
    ),
    _Caller(
        "transformers.modeling_utils",
        ("_resize_token_embeddings", "_get_resized_embeddings", "_get_resized_lm_head"),
        f"resize before registering, or {_FOLD}",
    ),
)
_PLACES = tuple(caller.module for caller in _LENDS_NOT)
_SWAPS = _Caller(
    "torch.nn.utils._named_member_accessor",
    ("swap_tensor",),
    "hand in the factors, {name}'s parametrizations.{tensor_name}.original0 and so on, or " + _FOLD,
)


def refuse_to_lend(owner: str, tensor_name: str) -> None:
    """Raises ``ValueError`` where a weight is read by code that is about to replace it or to write to it.

    Args:
        owner: the plain class of the module.
        tensor_name: the weight.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(3):
        if frame is None:
            return
        if frame.f_globals.get("__name__", "").startswith(_PLACES):
            for caller in _LENDS_NOT:
                if _is(frame, caller):
                    raise ValueError(_message(owner, tensor_name, frame, caller))
        frame = frame.f_back


def refuse_to_swap(owner: str, tensor_name: str) -> None:
    """Raises ``ValueError`` where ``functional_call`` would put a tensor in the place of a computed weight.

    Args:
        owner: the plain class of the module.
        tensor_name: the weight.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(6):  # classes and parameters have a setattr of their own between
        if frame is None:
            return
        if _is(frame, _SWAPS):
            raise ValueError(_message(owner, tensor_name, frame, _SWAPS))
        frame = frame.f_back


def refuse_onnx() -> None:
    """Raises ``RuntimeError`` within ``torch.onnx.export``, which has no triangular solves."""
    if tracing_state() is None and not torch.compiler.is_exporting():
        return
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            "torch.onnx.export has no operator for what a weight in SVD form is computed by; export a folded copy: "
            "remove_svd_parametrization(copy.deepcopy(model))."
        )


def _is(frame: FrameType, caller: _Caller) -> bool:
    name: str = frame.f_globals.get("__name__", "")
    found = name.startswith(caller.module) if caller.module.endswith(".") else name == caller.module
    return found and (not caller.functions or frame.f_code.co_name in caller.functions)


def _message(owner: str, tensor_name: str, frame: FrameType, caller: _Caller) -> str:
    while frame.f_code.co_name.startswith("<") and frame.f_back is not None:  # a comprehension
        frame = frame.f_back
    function = frame.f_code.co_name
    remedy = caller.remedy.format(name=owner, tensor_name=tensor_name)
    return f"{tensor_name}: {owner}'s is computed from its SVD, and {function} would have no effect on it; {remedy}."
