"""Weights of equal shape built in one batched call, for networks of many small layers.

A small weight costs less in multiplications than in the calls that ask for them: thirty layers of 128 take thirty times
some sixty operations one by one, and sixty batched ones together.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.functional.factorization import packed_weight
from spectral_param.functional.frozen import stands_still
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import SigmaMap
from spectral_param.sizes import Sizes
from spectral_param.torch_state.modes import traced_or_transformed, without_autocast


@contextmanager
def together(model: nn.Module) -> Iterator[None]:
    """Evaluates the registered weights of a model once within it, those of equal shape in one batched call.

    To be put around the forward of a training step. It is :func:`torch.nn.utils.parametrize.cached`, filled beforehand:
    the weights are those at the start, so that no optimizer may step within; copies made within have weights of their
    own; a layer that is not used gets no gradient; nothing is left behind, whatever happens within. Weights that have
    no equal (in shape, reflectors and σ map), that another parametrization stands on, that hooks listen to, in blocks
    or on shards are evaluated as ever, once. Layers build W then, also those with ``matrix_free``. Under a compiler or
    a transform of ``torch.func`` it does nothing.

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
    with parametrize.cached():
        for group in [] if torch.is_inference_mode_enabled() else _groups(model):
            if len(group) > 1:
                first = group[0].parametrization
                factors = [factor for one in group for factor in one.factors]
                weights = _Together.apply(first.sizes, first.sigma_map, *factors)
                for (name, p, _), weight in zip(group, weights, strict=True):
                    parametrize._cache.setdefault(name, p.matrices.to_weight(weight).to(p.dtype))
        yield


class _Weight(NamedTuple):
    name: tuple[int, str]  # in torch's cache
    parametrization: SVDParametrization
    factors: tuple[Tensor | None, Tensor, Tensor | None]


def _groups(model: nn.Module) -> list[list[_Weight]]:
    """The weights that can be built side by side."""
    groups = defaultdict(list)
    for name, held in _parametrized(model):
        p = _alone(held)
        if p is not None:
            u, _, v = factors = p.trained_parts
            plain = all(f is None or _is_plain(f) for f in factors)
            still = all(f is None or stands_still(f) for f in (u, v))
            if plain and not still:
                kind = [f if f is None else (f.dtype, f.device, f.requires_grad) for f in factors]
                groups[(p.sizes, _kind(p.sigma_map), *kind)].append(_Weight(name, p, factors))
    return list(groups.values())


# A network of 30 layers is looked through in each step: dictionaries, as module.modules() and attributes of modules
# took an eighth of the step.
def _parametrized(model: nn.Module) -> Iterator[tuple[tuple[int, str], nn.Module]]:
    """Each parametrized weight's name in torch's cache, and what holds it."""
    waiting: list[nn.Module] = [model]
    seen: set[nn.Module] = set()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for name, child in module._modules.items():
            if name == "parametrizations" and isinstance(child, nn.ModuleDict):
                yield from (((id(module), weight), held) for weight, held in child._modules.items() if held is not None)
            elif child is not None:
                waiting.append(child)


def _alone(held: nn.Module) -> SVDParametrization | None:
    """The SVD, if W is one block of it and nothing more, and nobody listens."""
    p = held._modules.get("0")
    if not isinstance(p, SVDParametrization) or len(held._modules) > 1 or p.chunks > 1:
        return None
    sigma_map: Any = p._modules["sigma_map"]
    if (sigma_map._parameters or sigma_map._modules) and next(sigma_map.parameters(), None) is not None:
        return None  # trained too, and might be shared
    return None if any(map(_is_listened_to, (held, p, sigma_map))) else p


def _is_listened_to(m: nn.Module) -> bool:
    return bool(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks)


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
    """Each W from its (u, raw σ, v), by one call on their stacks; no gradient for what has not been used."""

    @staticmethod
    def forward(ctx: Any, sizes: Sizes, sigma_map: SigmaMap, *flat: Tensor | None) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*flat)
        ctx.set_materialize_grads(False)
        ctx.build = build = functools.partial(_build, sizes, sigma_map)
        ctx.stacks = [_stacked(flat[i::3]) for i in range(3)]
        device = next(f.device.type for f in flat if f is not None)
        with torch.autocast(device, enabled=False), torch.enable_grad():
            for i, stack in enumerate(ctx.stacks):
                if stack is not None and ctx.needs_input_grad[2 + i]:
                    stack.requires_grad_()
            ctx.weights = build(*ctx.stacks)
        return ctx.weights.detach().unbind(0)

    @staticmethod
    @without_autocast
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        flat, needs = ctx.saved_tensors, ctx.needs_input_grad[2:]
        used = [g is not None for g in grads for _ in range(3)]
        needed = [f for f, need, use in zip(flat, needs, used, strict=True) if need and use]
        if torch.is_grad_enabled():  # of higher order: one by one, with a graph
            triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
            weights = [ctx.build(*f) for f, g in zip(triples, grads, strict=True) if g is not None]
            given = [g for g in grads if g is not None]
            one_by_one = torch.autograd.grad(weights, needed, given, create_graph=True, allow_unused=True)
            rest = iter(one_by_one)
            return (None, None, *(next(rest) if need and use else None for need, use in zip(needs, used, strict=True)))
        stacks = [s for s in ctx.stacks if s is not None and s.requires_grad]
        whole = torch.stack([torch.zeros_like(ctx.weights[0]) if g is None else g for g in grads])
        found = iter(torch.autograd.grad(ctx.weights, stacks, whole, retain_graph=True, allow_unused=True))
        of_stacks = [next(found) if s is not None and s.requires_grad else None for s in ctx.stacks]
        parts = [[None] * len(grads) if g is None else g.unbind(0) for g in of_stacks]
        pairs = enumerate(zip(needs, used, strict=True))
        return (None, None, *(parts[i % 3][i // 3] if need and use else None for i, (need, use) in pairs))


def _build(sizes: Sizes, sigma_map: SigmaMap, u: Tensor | None, raw: Tensor, v: Tensor | None) -> Tensor:
    return packed_weight(u, sigma_map(raw), v, sizes)


def _stacked(each: Sequence[Tensor | None]) -> Tensor | None:
    present = [f for f in each if f is not None]
    return torch.stack(present) if present else None
