"""What is computed by hand, forward and backward: an autograd function for eager torch, an operator for its graphs.

Note [Operators]
    A compiler traces an autograd function operation by operation, dozens for each block of reflectors, and makes
    slower code of them in minutes. An operator is one node of its graph, and runs what eager torch runs. To make one:

    1. Write a subclass of :class:`ByHand`. Its ``compute`` and ``gradients`` also run on tensors without numbers, for
       shapes and strides alone, so they look at no value; what they return shares no memory with what they are given,
       nor with each other.
    2. Make the operator of it by :func:`operator`, with the types of its arguments, and let the public function call
       the one where ``torch.compiler.is_compiling()``, and ``apply`` of the other elsewhere.
    3. Add it to ``tests/spectral_param/functional/test_by_hand.py``, where ``torch.library.opcheck`` looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectral_param.torch_state.higher_order import gradients_by_running_again, must_run_again
from spectral_param.torch_state.modes import is_lowered
from spectral_param.torch_state.precision import full_precision, in_full_precision
from spectral_param.torch_state.private import tree_map, widen_under_autocast

_operators = torch.library.Library("spectral_param", "FRAGMENT")


class ByHand(torch.autograd.Function):
    """An autograd function with a handwritten backward, run again plainly where its gradients are differentiated.

    A subclass has a ``forward`` for eager torch, which calls ``compute``, saves the tensors it was given and after them
    what is kept, and sets ``ctx.rule`` to the class and ``ctx.numbers`` to what it was given after the tensors.

    Attributes:
        results: how many results there are.
        kept_from: where, in the list of ``compute``, that begins which is kept; results may be kept too.
        compute: from tensors and numbers a list of results, then of what else is kept for the backward.
        gradients: from the gradients by the results, the tensors, what is kept, which of the tensors need a gradient
            and the numbers: a gradient for each tensor, ``None`` where none is needed.
        plainly: the results, from tensors and numbers, in operations that everything sees through.
    """

    results: ClassVar[int] = 1
    kept_from: ClassVar[int] = 1
    compute: ClassVar[Callable[..., list[Tensor]]]
    gradients: ClassVar[Callable[..., Sequence[Tensor | None]]]
    plainly: ClassVar[Callable[..., Any]]

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients by the tensors, and none by the numbers."""
        rule, numbers, saved = ctx.rule, ctx.numbers, ctx.saved_tensors
        count = len(ctx.needs_input_grad) - len(numbers)
        tensors, needs = saved[:count], ctx.needs_input_grad[:count]
        if must_run_again(*grads):  # what is kept has no graph
            found = gradients_by_running_again(lambda *t: rule.plainly(*t, *numbers), tensors, needs, grads)
        else:
            found = rule.gradients(grads, tensors, saved[count:], needs, *numbers)
        return (*found, *[None] * len(numbers))


def operator(name: str, rule: type[ByHand], tensors: str, numbers: str = "", *, widens: bool = True) -> Any:
    """Makes ``torch.ops.spectral_param.<name>`` of a rule, and of its gradients the same with ``_backward``.

    Args:
        name: of the operator.
        rule: what it computes.
        tensors: the types and names of its tensors, as ``"Tensor x, Tensor? bias"``.
        numbers: those of what follows them.
        widens: whether it takes float32 under autocast; else the dtypes it is given.

    Returns:
        A function of tensors and numbers to the result, or a tuple of results.
    """
    count, results = tensors.count("Tensor"), rule.results
    more = f", {numbers}" if numbers else ""
    _operators.define(f"{name}({tensors}{more}) -> Tensor[]")
    grads = ", ".join(f"Tensor? grad_{i}" for i in range(results))
    _operators.define(f"{name}_backward({grads}, {tensors}, Tensor[] kept, bool[] needs{more}) -> Tensor[]")
    forward, backward = (getattr(torch.ops.spectral_param, each).default for each in (name, f"{name}_backward"))

    def gradients(*arguments: Any) -> list[Tensor]:
        given, (kept, needs, *rest) = arguments[: results + count], arguments[results + count :]
        found = rule.gradients(given[:results], given[results:], kept, needs, *rest)
        return [grad for grad, need in zip(found, needs, strict=True) if need and grad is not None]

    def setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
        ctx.save_for_backward(*inputs[:count], *output[rule.kept_from :])
        ctx.rule, ctx.numbers = rule, inputs[count:]
        ctx.mark_non_differentiable(*output[results:])
        ctx.set_materialize_grads(False)

    def formula(ctx: Any, grads: list[Tensor | None]) -> tuple[Tensor | None, ...]:
        grads, numbers, saved, needs = grads[:results], ctx.numbers, ctx.saved_tensors, ctx.needs_input_grad
        if all(grad is None for grad in grads):
            return (*[None] * count, *[None] * len(numbers))
        if must_run_again(*grads):
            return ByHand.backward(ctx, *grads)
        found = iter(backward(*grads, *saved[:count], saved[count:], needs[:count], *numbers))
        return (*(next(found) if need else None for need in needs[:count]), *[None] * len(numbers))

    for each, run in ((name, rule.compute), (f"{name}_backward", gradients)):
        _operators.impl(each, _fully_precise(run), "CompositeExplicitAutograd")
        qualified = f"spectral_param::{each}"
        torch.library.register_fake(qualified, run, lib=_operators)
        torch.library.register_vmap(qualified, _one_by_one(getattr(torch.ops.spectral_param, each)), lib=_operators)
        if widens:
            widen_under_autocast(qualified, _operators)
    torch.library.register_autograd(f"spectral_param::{name}", formula, setup_context=setup, lib=_operators)

    def call(*arguments: Any) -> Any:
        outputs = forward(*(list(a) if isinstance(a, tuple) else a for a in arguments))
        return outputs[0] if results == 1 else tuple(outputs[:results])

    return call


def _fully_precise(run: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """With neither autocast nor coarse products, as they are when it runs."""

    def wrapped(*arguments: Any) -> list[Tensor]:
        device = next(a for a in arguments if a is not None).device.type
        if not is_lowered(device):
            return run(*arguments)
        with full_precision(device):
            return run(*arguments)

    return wrapped


def _one_by_one(run: Callable[..., list[Tensor]]) -> Callable[..., tuple[list[Tensor], list[int]]]:
    """The rule for ``vmap``: a loop, since compilers alone have operators, and transforms the plain form."""

    def wrapped(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[list[Tensor], list[int]]:
        def at(i: int) -> list[Tensor]:
            return run(*tree_map(lambda a, dim: a if dim is None else a.select(dim, i), arguments, in_dims))

        columns = zip(*(at(i) for i in range(info.batch_size)), strict=True)
        stacked = [torch.stack(column) for column in columns]
        return stacked, [0] * len(stacked)

    return wrapped
