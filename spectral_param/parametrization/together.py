"""Weights of equal shape built in one batched call, for networks of many small layers.

A small weight costs less in multiplications than in the calls that ask for them: thirty layers of 128 take thirty times
some sixty operations one by one, and sixty batched ones together.
"""

from __future__ import annotations

import functools
import threading
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.ways import Way, build, is_frozen, way_to_build
from spectral_param.parametrization.shifted import ShiftedParametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.sigma import SigmaMap
from spectral_param.sizes import Sizes
from spectral_param.torch_state.higher_order import must_run_again
from spectral_param.torch_state.modes import is_listened_to, traced_or_transformed
from spectral_param.torch_state.precision import full_precision, in_full_precision

Triple = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Packed U, raw σ and packed V of a weight, as far as they are trained tensors."""


class _Kept(NamedTuple):
    factors: tuple[Tensor, ...]  # those that it was built from
    weights: dict[bool, Tensor]  # by whether gradients were on


class _Running(threading.local):
    """What the innermost :func:`together` of this thread has built, by the id of the parametrization."""

    def __init__(self) -> None:
        self.store: dict[int, _Kept] = {}


running = _Running()


@contextmanager
def together(model: nn.Module) -> Iterator[None]:
    """Evaluates the registered weights of a model once within it, those of equal shape in one batched call.

    To be put around the forward of a training step. The weights are those at the start, so that no optimizer may step
    within; copies made within have weights of their own; a layer that is not used gets no gradient; nothing is left
    behind, whatever happens within. What is built belongs to the thread and to whether gradients are on. Weights that
    have no equal (in shape, reflectors and σ map), that another parametrization stands on, that hooks listen to, in
    blocks or on shards are evaluated as ever, once. Layers build W then, also those with ``matrix_free``. Where other
    factors stand in the place of a model's own, as in ``functional_call``, under a compiler or a transform of
    ``torch.func``, and in a part that is checkpointed, weights are evaluated as without it.

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
    if not keeps(p):
        return None
    weights = running.store[id(p)].weights
    with_gradients = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    if with_gradients not in weights:
        weights[with_gradients] = parametrization_list()
    return weights[with_gradients]


def keeps(parametrization: Any) -> bool:
    """Whether :func:`together` keeps the weight of an SVD here; not where other factors stand in the place of its own.

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
    if kept is None or traced_or_transformed() or _is_run_again():
        return False
    factors = parametrization.factors
    return len(factors) == len(kept.factors) and all(a is b for a, b in zip(factors, kept.factors, strict=True))


def _is_run_again() -> bool:
    """Whether this is a part that is checkpointed, which the backward runs again: by hooks, or within itself."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None or torch._C._current_graph_task_id() >= 0


def _built(model: nn.Module) -> dict[int, _Kept]:
    """Batches where there are equals; for the others a place to keep what is evaluated."""
    store = {}
    for held in _registered(model):
        p: Any = held._modules["0"]
        store[id(p)] = _Kept(p.factors, {})
    if torch.is_inference_mode_enabled() or _is_run_again():
        return store
    for group in _groups(model):
        if len(group) > 1:
            first = group[0].parametrization
            u, raw, v = first.parts
            way = way_to_build(u, raw, v, transformed=False)
            flat = [factor for one in group for factor in one.factors]
            weights = _Together.apply(first.sizes, first.sigma_map, way, *flat)
            for (p, _), weight in zip(group, weights, strict=True):
                store[id(p)].weights[torch.is_grad_enabled()] = p.as_weight(weight.to(p.dtype))
    return store


class _Weight(NamedTuple):
    parametrization: SVDParametrization
    factors: Triple


def _groups(model: nn.Module) -> list[list[_Weight]]:
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
            groups[(p.sizes, _kind(p.sigma_map), *kind)].append(_Weight(p, triple))
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


class _Together(torch.autograd.Function):
    """Each W from its :data:`Triple`, by one call on their stacks; no gradient for what has not been used."""

    @staticmethod
    def forward(ctx: Any, sizes: Sizes, sigma_map: SigmaMap, way: Way, *flat: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*flat)
        ctx.set_materialize_grads(False)
        ctx.build = make = functools.partial(_build, sizes, sigma_map, way)
        ctx.stacks = [_stacked(flat[i::3]) for i in range(3)]  # (N, …) of U, of raw σ and of V
        device = next(f.device.type for f in flat if f is not None)
        with full_precision(device), torch.enable_grad():
            for i, stack in enumerate(ctx.stacks):
                if stack is not None and ctx.needs_input_grad[3 + i]:
                    stack.requires_grad_()
            ctx.weights = make(*ctx.stacks)  # (N, p, q)
        return ctx.weights.detach().unbind(0)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # flat: 3 N factors, U₁, σ₁, V₁, U₂, …
        # needs, used: of each of them
        # grads: N of (p, q), None for a weight that was not used
        flat, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]
        used = [g is not None for g in grads for _ in range(3)]
        needed = [f for f, need, use in zip(flat, needs, used, strict=True) if need and use]
        if must_run_again(*grads):  # one by one, with a graph
            with torch.enable_grad():
                triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
                weights = [ctx.build(*f) for f, g in zip(triples, grads, strict=True) if g is not None]
                given = [g for g in grads if g is not None]
                one_by_one = torch.autograd.grad(weights, needed, given, create_graph=True, allow_unused=True)
            rest = iter(one_by_one)
            found = [next(rest) if need and use else None for need, use in zip(needs, used, strict=True)]
            return (None, None, None, *found)
        stacks = [s for s in ctx.stacks if s is not None and s.requires_grad]  # of U, of raw σ, of V: (N, …)
        whole = torch.stack([torch.zeros_like(ctx.weights[0]) if g is None else g for g in grads])  # (N, p, q)
        of_trained = iter(torch.autograd.grad(ctx.weights, stacks, whole, retain_graph=True, allow_unused=True))
        of_stacks = [next(of_trained) if s is not None and s.requires_grad else None for s in ctx.stacks]
        parts = [[None] * len(grads) if g is None else g.unbind(0) for g in of_stacks]  # 3 rows of N
        pairs = enumerate(zip(needs, used, strict=True))
        return (None, None, None, *(parts[i % 3][i // 3] if need and use else None for i, (need, use) in pairs))


def _build(
    sizes: Sizes, sigma_map: SigmaMap, way: Way, u: Tensor | None, raw: Tensor | None, v: Tensor | None
) -> Tensor:
    """W from trained tensors, stacked or not."""
    present = next(f for f in (u, raw, v) if f is not None)
    lead = present.shape[:-1]
    u, v = (present.new_empty(*lead, 0) if side is None else side for side in (u, v))
    raw = present.new_empty(*lead, sizes.k) if raw is None else raw
    left, right = ReflectorProduct(u, sizes.p, sizes.m1), ReflectorProduct(v, sizes.q, sizes.m2)
    return build(way, left, sigma_map(raw), right)


def _stacked(each: Sequence[Tensor | None]) -> Tensor | None:
    present = [f for f in each if f is not None]
    return torch.stack(present) if present else None
