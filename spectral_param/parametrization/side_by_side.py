"""Weights of equal shape, or their thin factors, from their trained tensors in one batched call."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.low_rank import low_rank_factors
from spectral_param.functional.ways import Way, build, way_to_build
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import SigmaMap
from spectral_param.sizes import Sizes
from spectral_param.torch_state.higher_order import apart, must_run_again
from spectral_param.torch_state.precision import full_precision, in_full_precision

Triple = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Packed U, raw σ and packed V of a weight, as far as they are trained tensors."""


class Equal(NamedTuple):
    """One of several weights of the same sizes and σ map.

    Attributes:
        parametrization: of one block.
        factors: its trained tensors.
    """

    parametrization: SVDParametrization
    factors: Triple


def side_by_side(equals: Sequence[Equal], *, thin: bool) -> list[Any]:
    """Builds W of each, (p, q), alone in a tuple, or its σ, L and R (see ``functional/low_rank``), in one call.

    Args:
        equals: what to build.
        thin: whether σ, L and R.

    Returns:
        A tuple for each; no gradient goes to what of it is not used.

    Example:
        >>> from torch import nn
        >>> from spectral_param import SVDParametrization, register_svd_parametrization
        >>> from spectral_param.parametrization.side_by_side import Equal, side_by_side
        >>> layers = [register_svd_parametrization(nn.Linear(4, 3), reflectors=1, init="orthogonal") for _ in range(2)]
        >>> both = [SVDParametrization.alone_on(layer) for layer in layers]
        >>> [[tuple(t.shape) for t in each] for each in side_by_side([Equal(p, p.factors) for p in both], thin=True)]
        [[(3,), (3, 2), (4, 2)], [(3,), (3, 2), (4, 2)]]
    """
    first = equals[0].parametrization
    u, raw, v = first.parts
    way = None if thin else way_to_build(u, raw, v, transformed=False)
    flat = _SideBySide.apply(first.sizes, first.sigma_map, way, *(factor for one in equals for factor in one.factors))
    return list(zip(*[iter(flat)] * (3 if thin else 1), strict=True))


class _SideBySide(torch.autograd.Function):
    """Results for each :data:`Triple`, by one call on their stacks; no gradient for what has not been used."""

    @staticmethod
    def forward(
        ctx: Any, sizes: Sizes, sigma_map: SigmaMap, way: Way | None, *flat: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*flat)
        ctx.set_materialize_grads(False)
        ctx.build = make = functools.partial(_build, sizes, sigma_map, way)
        ctx.stacks = [_stacked(flat[i::3]) for i in range(3)]  # (N, …) of U, of raw σ and of V
        device = next(f.device.type for f in flat if f is not None)
        with full_precision(device), torch.enable_grad():
            for i, stack in enumerate(ctx.stacks):
                if stack is not None and ctx.needs_input_grad[3 + i]:
                    stack.requires_grad_()
            ctx.results = make(*ctx.stacks)  # (N, p, q), or (N, k), (N, p, 2 m) and (N, q, 2 m)
        parts = [result.detach().unbind(0) for result in ctx.results]
        ctx.mark_non_differentiable(
            *(part for own, result in zip(parts, ctx.results, strict=True) if not result.requires_grad for part in own)
        )
        return tuple(part for each in zip(*parts, strict=True) for part in each)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        # flat: 3 N factors, U₁, σ₁, V₁, U₂, …
        # needs, used: of each of them
        # grads: those of each of N weights, None for what was not used
        flat, needs, count = ctx.saved_tensors, ctx.needs_input_grad[3:], len(ctx.results)
        each = [grads[i : i + count] for i in range(0, len(grads), count)]
        used = [any(g is not None for g in own) for own in each for _ in range(3)]
        if must_run_again(*grads):  # one by one, with a graph
            with torch.enable_grad():
                anew = apart(flat)
                needed = [f for f, need, use in zip(anew, needs, used, strict=True) if need and use and f is not None]
                again = [ctx.build(*anew[3 * i : 3 * i + 3]) if used[3 * i] else () for i in range(len(each))]
                asked = [
                    (w, g)
                    for results, own in zip(again, each, strict=True)
                    for w, g in zip(results or own, own, strict=True)
                    if g is not None
                ]
                outputs, by_outputs = zip(*asked, strict=True)
                one_by_one = torch.autograd.grad(outputs, needed, by_outputs, create_graph=True, allow_unused=True)
            rest = iter(one_by_one)
            found = [next(rest) if need and use else None for need, use in zip(needs, used, strict=True)]
            return (None, None, None, *found)
        stacks = [s for s in ctx.stacks if s is not None and s.requires_grad]  # of U, of raw σ, of V: (N, …)
        differentiable = [
            (r, of_all) for r, of_all in zip(ctx.results, zip(*each, strict=True), strict=True) if r.requires_grad
        ]
        whole = [
            torch.stack([torch.zeros_like(result[0]) if g is None else g for g in of_all])
            for result, of_all in differentiable
        ]
        results = [result for result, _ in differentiable]
        of_trained = iter(torch.autograd.grad(results, stacks, whole, retain_graph=True, allow_unused=True))
        of_stacks = [next(of_trained) if s is not None and s.requires_grad else None for s in ctx.stacks]
        parts = [[None] * len(each) if g is None else g.unbind(0) for g in of_stacks]  # 3 rows of N
        wanted = [need and use for need, use in zip(needs, used, strict=True)]
        return (None, None, None, *(parts[i % 3][i // 3] if want else None for i, want in enumerate(wanted)))


def _build(
    sizes: Sizes, sigma_map: SigmaMap, way: Way | None, u: Tensor | None, raw: Tensor | None, v: Tensor | None
) -> tuple[Tensor, ...]:
    """W, or without a way σ, L and R, from trained tensors, stacked or not."""
    present = next(f for f in (u, raw, v) if f is not None)
    lead = present.shape[:-1]
    u, v = (present.new_empty(*lead, 0) if side is None else side for side in (u, v))
    raw = present.new_empty(*lead, sizes.k) if raw is None else raw
    left, right = ReflectorProduct(u, sizes.p, sizes.m1), ReflectorProduct(v, sizes.q, sizes.m2)
    sigma = sigma_map(raw)
    return (sigma, *low_rank_factors(left, sigma, right)) if way is None else (build(way, left, sigma, right),)


def _stacked(each: Sequence[Tensor | None]) -> Tensor | None:
    present = [f for f in each if f is not None]
    return torch.stack(present) if present else None
