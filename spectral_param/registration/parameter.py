"""The parameter that a registration asks for, or what is wrong with asking for it."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from spectral_param.parametrization.lookup import (
    check_module,
    check_tensor_name,
    is_registered,
    parameters_in_words,
    parametrization_lists,
)
from spectral_param.parametrization.starting import has_real_numbers
from spectral_param.registration.injection.sole_holder import check_sole_holder
from spectral_param.registration.needs_plain import reason_for_a_plain_weight
from spectral_param.torch_state.private import is_traceable_wrapper_subclass
from spectral_param.torch_state.quantized import is_quantized


def parameter_of(module: nn.Module, tensor_name: str, base: str | None) -> nn.Parameter:
    """The parameter to register on, or an error that says what stands in its place.

    Args:
        module: the module that owns it.
        tensor_name: its name there.
        base: ``"frozen"`` takes quantized weights of ``nn.Linear`` too.

    Raises:
        TypeError: for what is no module, no string, or no real floating number.
        ValueError: for what is parametrized, a buffer, not there, without a shape yet, or of a kind that cannot be.

    Example:
        >>> from torch import nn
        >>> from spectral_param.registration.parameter import parameter_of
        >>> parameter_of(nn.Linear(3, 2), "weight", None).shape
        torch.Size([2, 3])
    """
    check_module("module", module)
    check_tensor_name(tensor_name)
    owner = type(module).__name__
    if parametrize.is_parametrized(module, tensor_name):
        held = parametrization_lists(module)[tensor_name]
        whose = " and ".join(type(one).__name__ for one in held)
        theirs = f"torch.nn.utils.parametrize.remove_parametrizations(module, {tensor_name!r})"
        remedy = "remove_svd_parametrization(module)" if is_registered(module, tensor_name) else theirs
        raise ValueError(
            f"tensor_name: {tensor_name!r} of {owner} is parametrized already, by {whose}; {remedy} takes that off."
        )
    if tensor_name in module._buffers:
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} is a buffer, expected a parameter.")
    if module._parameters.get(tensor_name) is not None:
        check_sole_holder(module, tensor_name)
    weight = module._parameters.get(tensor_name)
    if weight is None:
        needs_plain = reason_for_a_plain_weight(module, tensor_name)
        if needs_plain is not None:
            raise ValueError(f"module: {needs_plain}.")
        others = parameters_in_words(module, tensor_name, "register_all")
        raise ValueError(f"tensor_name: {owner} has no parameter {tensor_name!r}; {others}.")
    if isinstance(weight, nn.parameter.UninitializedParameter):
        raise ValueError(f"tensor_name: {tensor_name!r} of {owner} has no shape before the first forward.")
    if not has_real_numbers(weight):
        raise TypeError(f"tensor_name: expected a real floating dtype, got {weight.dtype}.")
    needs_plain = reason_for_a_plain_weight(module, tensor_name)
    if needs_plain is not None:
        raise ValueError(f"module: {needs_plain}.")
    if is_traceable_wrapper_subclass(weight):
        kind = type(weight).__name__
        if not is_quantized(weight):
            raise ValueError(f"tensor_name: {tensor_name!r} of {owner} is a {kind}; register before sharding.")
        if base != "frozen" or type(module).forward is not nn.Linear.forward:
            what = f"{tensor_name!r} of {owner} is a {kind}"
            raise ValueError(f"tensor_name: {what}, quantized; base='frozen' keeps such a one, in an nn.Linear.")
    return weight
