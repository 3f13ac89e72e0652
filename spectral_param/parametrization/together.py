"""Weights of equal shape built in one batched call, or their thin factors, for networks of many small layers.

A small weight costs less in multiplications than in the calls that ask for them: thirty layers of 128 take thirty times
some sixty operations one by one, and sixty batched ones together.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.functional.ways import Thin, is_frozen
from spectral_param.functional.work import spares_equal_weights
from spectral_param.parametrization.lookup import check_module
from spectral_param.parametrization.shifted import ShiftedParametrization
from spectral_param.parametrization.side_by_side import Equal, side_by_side
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.sigma import SigmaMap
from spectral_param.torch_state.modes import is_listened_to, traced_or_transformed
from spectral_param.torch_state.private import graph_task, saved_tensor_hooks


class _Kept(NamedTuple):
    factors: tuple[Tensor, ...]  # those that it was built from
    weights: dict[bool, Tensor]  # by whether gradients were on
    thin: dict[bool, Thin]  # in the same way
    equals: list[Equal]  # those that are built side by side, with this one among them; or none


class _Running(threading.local):
    """What the innermost :func:`together` of this thread has built, by the id of the parametrization."""

    def __init__(self) -> None:
        self.store: dict[int, _Kept] = {}


running = _Running()


@contextmanager
def together(model: nn.Module) -> Iterator[None]:
    """Evaluates the registered weights of a model once within it, those of equal shape in one batched call.

    To be put around one forward of a training step, each of several that add up their gradients in one of its own: the
    backward frees what the weights were made by. All weights of a shape are built when the first is asked for, and
    stay as they are, so that no optimizer may step within; an ``nn.Linear`` that has less work with the thin factors of
    few reflectors than with W gets those, made for all in the same way, but for ``matrix_free=False``. Copies made
    within have weights of their own; a layer that is not used gets no gradient; nothing is left behind, whatever
    happens within. What is built belongs to the thread and to whether gradients are on. Weights that have no equal (in
    shape, reflectors and σ map), that another parametrization stands on, that hooks listen to, in blocks or on shards
    are evaluated as ever, once, as W, also with ``matrix_free``. Where other factors stand in the place of a model's
    own, as in ``functional_call``, under a compiler or a transform of ``torch.func``, and in a part that is
    checkpointed, weights are evaluated as without it.

    Args:
        model: any module.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import register_svd_parametrization, together
        >>> layers = [register_svd_parametrization(nn.Linear(8, 8), reflectors=2, init="orthogonal") for _ in range(5)]
        >>> model, x = nn.Sequential(*layers), torch.randn(3, 8)
        >>> with together(model):
        ...     loss = model(x).square().sum()
        >>> loss.backward()
        >>> torch.allclose(loss, model(x).square().sum())
        True
    """
    check_module("model", model)
    if traced_or_transformed():
        yield
        return
    outer = running.store
    running.store = {**outer, **_built(model)}
    try:
        yield
    finally:
        running.store = outer


def kept_weight(parametrization_list: Any) -> Tensor | None:
    """The weight that :func:`together` keeps for a parametrization list, evaluated now if it has to be.

    Returns:
        W; ``None`` where it is to be evaluated as without ``together``.
    """
    p = parametrization_list._modules.get("0")
    return weight_of(p) if keeps(p) else None


def weight_of(p: SVDParametrization) -> Tensor:
    """The weight that :func:`together` :func:`keeps`, built with its equals if it has not been."""
    kept, with_gradients = running.store[id(p)], _with_gradients()
    if with_gradients not in kept.weights:
        if kept.equals and not torch.is_inference_mode_enabled():
            for one, (weight,) in zip(kept.equals, side_by_side(kept.equals, thin=False), strict=True):
                as_weight = one.parametrization.as_weight(weight.to(one.parametrization.dtype))
                running.store[id(one.parametrization)].weights[with_gradients] = as_weight
        else:
            kept.weights[with_gradients] = p.parametrization_list()
    return kept.weights[with_gradients]


def kept_thin_factors(p: SVDParametrization, vectors: int) -> Thin | None:
    """σ, L and R of a weight that :func:`together` keeps, made for all of its equals where none has asked for W yet.

    Args:
        p: one that :func:`keeps`.
        vectors: how many meet W now.

    Returns:
        σ, (k,), L, (p, 2 m), and R, (q, 2 m); ``None`` where W is less work.
    """
    kept, with_gradients = running.store[id(p)], _with_gradients()
    if with_gradients not in kept.thin:
        unwanted = with_gradients in kept.weights or torch.is_inference_mode_enabled()
        if unwanted or not kept.equals or not spares_equal_weights(p.sizes, vectors):
            return None
        for one, factors in zip(kept.equals, side_by_side(kept.equals, thin=True), strict=True):
            running.store[id(one.parametrization)].thin[with_gradients] = factors
    return kept.thin[with_gradients]


def _with_gradients() -> bool:
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def keeps(parametrization: Any) -> bool:
    """Whether :func:`together` keeps the weight of an SVD here.

    Not where other factors stand in the place of its own, or an adapter is left out: W is the frozen base then.

    Example:
        >>> import torch
        >>> from spectral_param import register_svd_parametrization, together
        >>> from spectral_param.parametrization.together import keeps
        >>> layer = register_svd_parametrization(torch.nn.Linear(3, 3))
        >>> with together(layer):
        ...     keeps(layer.parametrizations.weight[0])
        True
    """
    kept = running.store.get(id(parametrization))
    if kept is None or parametrization.is_off or traced_or_transformed() or _is_run_again():
        return False
    factors = parametrization.factors
    return len(factors) == len(kept.factors) and all(a is b for a, b in zip(factors, kept.factors, strict=True))


def _is_run_again() -> bool:
    """Whether this is a part that is checkpointed, which the backward runs again: by hooks, or within itself."""
    return saved_tensor_hooks() is not None or graph_task() >= 0


def _built(model: nn.Module) -> dict[int, _Kept]:
    """A place to keep what is evaluated, and its equals, where there are any."""
    equals = {id(one.parametrization): group for group in _groups(model) if len(group) > 1 for one in group}
    each: list[Any] = [held._modules["0"] for held in _registered(model)]
    return {id(p): _Kept(p.factors, {}, {}, equals.get(id(p), [])) for p in each}


def _groups(model: nn.Module) -> list[list[Equal]]:
    """The weights that can be built side by side."""
    groups = defaultdict(list)
    for held in _registered(model):
        p = _alone(held)
        if p is None:
            continue
        u, _, v = p.parts
        own = p.factors
        triple: Any = tuple(own[place] if place >= 0 else None for place in p.layout.places)
        plain = all(f is None or _is_plain(f) for f in triple)
        if plain and not (is_frozen(u) and is_frozen(v)):
            kind = [f if f is None else (f.dtype, f.device, f.requires_grad) for f in triple]
            groups[(p.sizes, _kind(p.sigma_map), *kind)].append(Equal(p, triple))
    return list(groups.values())


# A network of 30 layers is looked through in each step: dictionaries, as module.modules() and attributes of modules
# took an eighth of the step.
def _registered(model: nn.Module) -> Iterator[nn.Module]:
    """The parametrization lists of a model whose first is an SVD."""
    waiting: list[nn.Module] = [model]
    seen: set[nn.Module] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for name, child in module._modules.items():
            if name == "parametrizations" and isinstance(child, nn.ModuleDict):
                for held in child._modules.values():
                    if held is not None and isinstance(held._modules.get("0"), SVDParametrization):
                        yield held
            elif child is not None:
                waiting.append(child)


def _alone(held: nn.Module) -> SVDParametrization | None:
    """The SVD, if W is one block of it and nothing more, and nobody listens."""
    p: Any = held._modules["0"]
    if (
        len(held._modules) > 1
        or p.chunks > 1
        or isinstance(p, TurnedParametrization | ShiftedParametrization)
        or "forward" in held.__dict__
        or "forward" in p.__dict__
    ):
        return None
    sigma_map: Any = p._modules["sigma_map"]
    if (sigma_map._parameters or sigma_map._modules) and next(sigma_map.parameters(), None) is not None:
        return None  # trained too, and might be shared
    return None if is_listened_to(held, p, sigma_map) else p


def _is_plain(factor: Tensor) -> bool:
    return type(factor) in (Tensor, nn.Parameter) and factor.dtype.itemsize >= 4


def _kind(sigma_map: SigmaMap) -> Hashable:
    """Equal for maps that are equal, which are elementwise; one with more than numbers to it is like no other."""
    own = {name: value for name, value in vars(sigma_map).items() if name not in _OF_EVERY_MODULE}
    simple = all(isinstance(value, int | float | str) for value in own.values())
    if not simple or sigma_map._parameters or sigma_map._buffers or sigma_map._modules:
        return id(sigma_map)
    return type(sigma_map), sigma_map.training, frozenset(own.items())


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
