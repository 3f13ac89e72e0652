"""Finding SVD parametrizations in a module or a model, and the names that weights go by."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

from spectral_param.parametrization.shifted import ShiftedParametrization
from spectral_param.parametrization.svd import SVDParametrization

_WRAPPERS = re.compile(r"\b(_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|_forward_module)\.")
_OWNERS_OF_MODULE = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)


def check_module(argument: str, value: Any) -> None:
    """Raises ``TypeError`` for what is no module, with what was meant where that can be told.

    Example:
        >>> import torch
        >>> from spectral_param.parametrization.lookup import check_module
        >>> check_module("model", torch.nn.Linear(2, 2).parameters())
        Traceback (most recent call last):
        TypeError: model: expected a torch.nn.Module, got generator; give the model itself, not its parameters.
    """
    if isinstance(value, nn.Module):
        return
    remedy = ""
    if isinstance(value, Tensor):
        remedy = "; give the module that holds it, or take torch.linalg.svdvals of the tensor"
    elif isinstance(value, Iterator):
        remedy = "; give the model itself, not its parameters"
    raise TypeError(f"{argument}: expected a torch.nn.Module, got {type(value).__name__}{remedy}.")


def check_tensor_name(value: Any) -> None:
    """Raises ``TypeError`` for what is no name of a weight.

    Example:
        >>> from spectral_param.parametrization.lookup import check_tensor_name
        >>> check_tensor_name("weight_hh_l0")
    """
    if not isinstance(value, str):
        raise TypeError(f"tensor_name: expected a string, got {type(value).__name__}.")


def parametrization_lists(module: nn.Module) -> Any:
    """``module.parametrizations``, a ``ModuleDict`` from tensor names to lists whose first may be ours."""
    return module.parametrizations


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """``model.named_modules()`` without the names that wrappers add.

    Those of FSDP, ``torch.compile``, checkpointing, Fabric, DDP, ``DataParallel`` and ``AveragedModel``. A wrapper goes
    by the name of what it wraps, which comes after it. A submodule of the user's own that is called ``module`` keeps
    its name.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization.lookup import named_modules
        >>> [name for name, _ in named_modules(nn.DataParallel(nn.Sequential(nn.Linear(2, 2))))]
        ['', '', '0']
    """
    check_module("model", model)
    wrapped: list[str] = []  # how paths into wrappers begin; a wrapper comes before what it holds
    for path, module in model.named_modules():
        name = f"{path}." if path else ""
        for prefix in reversed(wrapped):
            if name.startswith(prefix):
                name = prefix.removesuffix("module.") + name.removeprefix(prefix)
        yield _WRAPPERS.sub("", name).removesuffix("."), module
        if isinstance(module, _OWNERS_OF_MODULE):
            wrapped.append(f"{path}.module.".removeprefix("."))


def qualified_name(list_name: str) -> str:
    """``"fc.parametrizations.weight"`` → ``"fc.weight"``, without the names that wrappers alone give.

    Example:
        >>> from spectral_param.parametrization.lookup import qualified_name
        >>> qualified_name("_orig_mod.fc.parametrizations.weight")
        'fc.weight'
    """
    return re.sub(r"(^|\.)parametrizations\.", r"\1", _WRAPPERS.sub("", list_name))


def svd_parametrizations(model: nn.Module) -> Iterator[tuple[str, SVDParametrization]]:
    """Goes through the registered weights of a model.

    Args:
        model: any module.

    Yields:
        The weight's qualified name, like ``"encoder.fc.weight"``, without what wrappers add, and its
        :class:`SVDParametrization`.

    Example:
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, svd_parametrizations
        >>> model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = register_svd_parametrization(model[2])
        >>> [name for name, _ in svd_parametrizations(model)]
        ['2.weight']
    """
    for name, held in named_modules(model):
        if isinstance(held, parametrize.ParametrizationList):
            first = held[0]
            if isinstance(first, SVDParametrization):
                yield qualified_name(name), first


def parameters_in_words(module: nn.Module, tensor_name: str, for_all: str) -> str:
    """What an error says of a parameter that is not there: which are, and what within the module has one of this name.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization.lookup import parameters_in_words
        >>> parameters_in_words(nn.Linear(2, 2), "kernel", "register_all")
        'it has weight, bias'
        >>> parameters_in_words(nn.Sequential(nn.Linear(2, 2)), "weight", "register_all")
        "it has none; give get_submodule('0') of it, or the whole to register_all"
    """
    computed = list(parametrization_lists(module)) if parametrize.is_parametrized(module) else []
    names = ", ".join([*computed, *(n for n, p in module._parameters.items() if p is not None)]) or "none"
    path, _, name = tensor_name.rpartition(".")
    for inner, owner in module.named_modules():
        if inner and path in ("", inner) and (owner._parameters.get(name) is not None or is_registered(owner, name)):
            return f"it has {names}; give get_submodule({inner!r}) of it, or the whole to {for_all}"
    return f"it has {names}"


def matrix_parametrization(module: nn.Module, tensor_name: str = "weight") -> SVDParametrization | None:
    """:meth:`SVDParametrization.alone_on`, for those who take its factors for the SVD of a matrix.

    Raises:
        ValueError: for a kernel whose σ are those of an operator on images, which has no matrix to decompose.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization.lookup import matrix_parametrization
        >>> matrix_parametrization(nn.Linear(2, 2)) is None
        True
    """
    check_module("module", module)
    parametrization = SVDParametrization.alone_on(module, tensor_name)
    if isinstance(parametrization, ShiftedParametrization):
        raise ValueError(
            f"tensor_name: expected a matrix, {tensor_name!r} is a kernel with the σ of an operator on images; it has "
            "singular_values, and its layer has inverse(output) and log_abs_det(height, width)."
        )
    return parametrization


def registered_names(module: nn.Module) -> list[str]:
    """Names of the weights of this very module that are registered.

    Example:
        >>> from torch import nn
        >>> from spectral_param.registration.register import register_svd_parametrization
        >>> from spectral_param.parametrization.lookup import registered_names
        >>> registered_names(register_svd_parametrization(nn.Linear(2, 2)))
        ['weight']
    """
    if not parametrize.is_parametrized(module):
        return []
    lists = parametrization_lists(module).items()
    return [name for name, held in lists if isinstance(held[0], SVDParametrization)]


def is_registered(module: nn.Module, tensor_name: str) -> bool:
    """Whether this weight of the module is held by an :class:`SVDParametrization`.

    Example:
        >>> from torch import nn
        >>> from spectral_param.parametrization.lookup import is_registered
        >>> is_registered(nn.Linear(2, 2), "weight")
        False
    """
    return tensor_name in registered_names(module)
