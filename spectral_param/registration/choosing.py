"""Which weights of a model to register, and in how many blocks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from torch import nn
from torch.nn.utils import parametrize

from spectral_param.parametrization.blocks import are_experts, blocks_of, matrices_of
from spectral_param.parametrization.lookup import named_modules, qualified_name
from spectral_param.parametrization.starting import has_real_numbers
from spectral_param.registration.injection.sole_holder import tied_to
from spectral_param.registration.needs_plain import reason_for_a_plain_weight
from spectral_param.registration.unregistered import unregistered
from spectral_param.torch_state.private import is_traceable_wrapper_subclass
from spectral_param.torch_state.quantized import is_quantized
from spectral_param.torch_state.shards import is_shard

Where = Callable[[str, nn.Module], bool] | type[nn.Module] | Sequence[type[nn.Module]]
"""A predicate of a qualified name and the module that owns it, or module types."""


class Place(NamedTuple):
    """Where a parameter is, without a hold on it.

    Attributes:
        name: its qualified name.
        module: its owner.
        tensor_name: its name there.
    """

    name: str
    module: nn.Module
    tensor_name: str

    @property
    def weight(self) -> nn.Parameter:
        """The parameter that is there."""
        weight = self.module._parameters[self.tensor_name]
        assert weight is not None
        return weight


def choose(model: nn.Module, where: Where | None, base: str | None = None) -> tuple[list[Place], dict[str, str]]:
    """Goes through the parameters of a model.

    Args:
        model: any module.
        where: which weights, as :func:`~spectral_param.register_all` says.
        base: ``"frozen"``: quantized weights of linear layers too.

    Returns:
        The parameters to register, and the names of the others, each with the reason.

    Raises:
        TypeError: for another kind of ``where``.

    Example:
        >>> from torch import nn
        >>> from spectral_param.registration.choosing import choose
        >>> chosen, passed_over = choose(nn.Linear(2, 3), None)
        >>> [place.name for place in chosen], passed_over
        (['weight'], {'bias': 'a vector'})
    """
    picks = _predicate(where)
    picked, passed_over = [], {}
    holders: dict[int, list[str]] = {}
    for place in _places(model):
        holders.setdefault(id(place.weight), []).append(place.name)
        reason = _reason_against(place, is_default=where is None, base=base)
        if reason is None and not picks(place.name, place.module):
            reason = "not chosen"
        if reason is None:
            picked.append(place)
        else:
            passed_over[place.name] = reason
    ties = {place.name: _tie(place, holders[id(place.weight)]) for place in picked}
    passed_over |= {name: f"tied to {tie}" for name, tie in ties.items() if tie is not None}
    for prefix, module in named_modules(model):
        if isinstance(module, parametrize.ParametrizationList):
            passed_over[qualified_name(prefix)] = "parametrized already"
    passed_over |= {name: f"not registered with the model: in a {kind}" for name, kind in unregistered(model).items()}
    return [place for place in picked if ties[place.name] is None], passed_over


def _places(model: nn.Module) -> Iterator[Place]:
    """The parameters of a model that no parametrization holds."""
    for prefix, module in named_modules(model):
        if "parametrizations" not in prefix.split("."):
            for tensor_name, weight in module._parameters.items():
                if weight is not None:
                    name = f"{prefix}.{tensor_name}" if prefix else tensor_name
                    yield Place(qualified_name(name), module, tensor_name)


def _predicate(where: Where | None) -> Callable[[str, nn.Module], bool]:
    if where is None:
        kinds: tuple[type, ...] = (nn.Module,)
    elif isinstance(where, type):
        kinds = (where,)
    elif isinstance(where, Sequence) and all(isinstance(kind, type) for kind in where):
        kinds = tuple(where)
    elif isinstance(where, nn.Module):
        raise TypeError(
            f"where: expected a module type, got a {type(where).__name__} itself; hand it in as the model, or give "
            "a predicate of names."
        )
    elif callable(where):
        try:
            inspect.signature(where).bind("name", nn.Module)
        except TypeError as error:
            raise TypeError(
                f"where: expected a predicate, called as where(name, module), got another: {error}."
            ) from None
        except ValueError:  # of some that are written in C nobody knows
            pass
        return where
    else:
        raise TypeError(f"where: expected None, a predicate, a module type or a list of types, got {where!r}.")

    def picks(name: str, module: nn.Module) -> bool:
        tensor_name = name.rpartition(".")[2]
        return isinstance(module, kinds) and ("weight" in tensor_name or tensor_name.endswith("proj"))

    return picks


def _reason_against(place: Place, is_default: bool, base: str | None) -> str | None:
    """Why a parameter is not even asked for; by default also where it does not act as a matrix."""
    weight = place.weight
    if isinstance(weight, nn.parameter.UninitializedParameter):
        return None
    if weight.dim() < 2:
        return "a vector"
    if is_default:
        kept = base == "frozen" and is_quantized(weight) and type(place.module).forward is nn.Linear.forward
        if is_traceable_wrapper_subclass(weight) and not kept:
            return "sharded" if is_shard(weight) else f"it is a {type(weight).__name__}"
        if not has_real_numbers(weight):
            return f"its dtype is {str(weight.dtype).removeprefix('torch.')}"
        if isinstance(place.module, (nn.LayerNorm, nn.RMSNorm)):
            return "a scale"
        if getattr(place.module, "sparse", False) or getattr(place.module, "max_norm", None) is not None:
            return "an embedding that changes its rows alone"
        reason = reason_for_a_plain_weight(place.module, place.tensor_name)
        if reason is not None:
            return reason
        try:
            matrices_of(place.module, weight, blocks_of(place.module, place.tensor_name))
        except ValueError:
            return "no matrix"
        if are_experts(place.module, weight) and not place.tensor_name.endswith(("weight", "proj")):
            return "no matrix"
    return None


def _tie(place: Place, holders: Sequence[str]) -> str | None:
    """What else a parameter is, in the model or outside; ``None`` for nothing."""
    others = [name for name in holders if name != place.name]
    return others[0] if others else tied_to(place.module, place.tensor_name)
