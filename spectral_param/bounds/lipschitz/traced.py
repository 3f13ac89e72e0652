"""Modules whose ``forward`` is not known, by their graph: ``torch.fx`` writes down what it calls, in what order.

Note [By the graph]
~~~~~~~~~~~~~~~~~~~
Of each value it is known how far it moves (:class:`~spectral_param.bounds.lipschitz.moved.Moved`). Modules that are
called have bounds of their own, sums add up, what is put side by side adds up in squares, and constants do not move. A
number is given only where every operation is one of these; all others are refused by name:

- a sum may repeat one of its terms (broadcasting), which then moves further: unless the shapes are known, from an
  example, or equal for certain, by what was done to them on their way, it is refused;
- a forward that asks what it is given, or draws lots, may have another course than the one that is written down;
- what works in place changes a value that others may read: for all inputs it may, being no steeper than 1, which what
  they read then is not either; else it has to be the only reader of what a layer has just made.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from spectral_param.bounds.known_call import departure
from spectral_param.bounds.lipschitz.memory import Memory, works_in_place
from spectral_param.bounds.lipschitz.moved import Moved, Shape, in_evaluation
from spectral_param.bounds.lipschitz.one_course import one_course, reads, writes_by_sign
from spectral_param.bounds.lipschitz.operations import (
    ADD,
    ADD_IN_PLACE,
    ATTRIBUTES,
    BY_SIGN,
    EXPAND,
    JOIN,
    LAYERS,
    MAKES_ANEW,
    MEAN,
    READ,
    REARRANGE,
    SCALE,
    SPLIT,
    NotKnown,
    ShapesNotKnown,
    concretely,
    constant,
    holds_unknown,
    is_basic,
    may_write_to_input,
    moving_in,
)

Through = Callable[[nn.Module, Moved], Moved]


def moved_through(module: nn.Module, value: Moved, through: Through) -> Moved:
    """What becomes of a value in a module whose forward is traced.

    Args:
        module: of a class that has no rule, nor is derived from one that has.
        value: what it is given.
        through: the same of any module.

    Raises:
        TypeError: if the forward cannot be traced, or does what is not known.
        ValueError: if an example is needed to know its shapes.
    """
    return _Evaluation(module, through).run(value)


class _Children(fx.Tracer):
    """Traces one forward alone: modules that it calls are calls."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def _gain_of_mean(centre: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """1/√n for a mean over n entries of a sample; 1 where samples are among them, of which there may be one."""
    over = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    dims = [over] if isinstance(over, int) else list(over or range(centre.dim()))
    dims = [dim % centre.dim() for dim in dims]
    return 1.0 if 0 in dims else 1 / math.sqrt(math.prod(centre.shape[dim] for dim in dims))


class _Evaluation:
    def __init__(self, module: nn.Module, through: Through) -> None:
        self.module, self.through = module, through
        self.defaults: list[Any] = []  # of the arguments behind the first
        self.constants: dict[str, Tensor] = {}  # that the forward makes
        self.by_sign = False  # whether a sum may be one in place
        self.graph = self._traced()

    def run(self, value: Moved) -> Moved:
        """The output, from the input."""
        values: dict[fx.Node, Any] = {}
        given = iter([value, *self.defaults])
        for node in self.graph.nodes:
            if node.op == "output":
                return self._output(fx.map_arg(node.args[0], values.__getitem__), value)
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                is_made = node.target in self.constants
                values[node] = self.constants[node.target] if is_made else operator.attrgetter(node.target)(self.module)
            else:
                args = fx.map_arg(node.args, values.__getitem__)
                kwargs = fx.map_arg(node.kwargs, values.__getitem__)
                values[node] = self._call(node, args, kwargs, value)
        raise AssertionError("a graph ends in an output")

    def _traced(self) -> fx.Graph:
        cls, name = type(self.module), type(self.module).__name__
        plain = {
            "__call__": nn.Module.__call__,
            "forward": cls.forward,
            "train": nn.Module.train,
            "eval": nn.Module.eval,
        }
        change = departure(self.module, plain)
        if change is None and cls.forward is not nn.Module.forward:
            try:
                parameters = list(inspect.signature(cls.forward).parameters.values())[2:]
                defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
                if len(defaults) == len(parameters):
                    self.defaults = list(defaults.values())
                    return self._trace(defaults)
                change = "several inputs"
            except Exception as error:  # whatever a forward does with what it is traced by
                change = f"a 'forward' that torch.fx cannot trace ({type(error).__name__}: {error})"
        with_what = f" with {change}" if change else ""
        raise TypeError(
            f"module: no Lipschitz bound is known for {name}{with_what}; give it one with lipschitz_bound.register."
        )

    def _trace(self, defaults: dict[str, Any]) -> fx.Graph:
        held, before = vars(self.module), dict(vars(self.module))
        memory = Memory(self.module)
        drawn, changed, ran = torch.get_rng_state(), set[str](), set[CodeType]()
        try:
            with in_evaluation(self.module), one_course() as ran:
                graph = _Children().trace(self.module, concrete_args=defaults or None)
            self.by_sign = any(map(writes_by_sign, ran))
            changed = {name for name in held.keys() | before.keys() if held.get(name) is not before.get(name)}
        finally:  # what is made on the way, by fx or by the forward, is left on the module
            self.constants = {name: held.pop(name) for name in set(held) - set(before)}
            held.update(before)
            changed |= memory.put_back()
            torch.set_rng_state(drawn)
        if remembered := sorted(name for name in changed if any(reads(code, name) for code in ran)):
            raise ValueError(f"it may have another course, since it remembers {remembered[0]!r}")
        return graph

    # ------------------------------------------------------------------------------------------------------------ calls

    def _call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], whole: Moved) -> Any:
        if node.target is operator.getitem and isinstance(args[0], tuple) and isinstance(args[1], (int, slice)):
            return args[0][args[1]]
        moving = moving_in((args, kwargs))
        if node.op == "call_module":
            return self._layer(node, self.module.get_submodule(str(node.target)), args, kwargs, moving)
        if not moving:
            if node.target in ADD_IN_PLACE or works_in_place(node):
                raise self._unknown(node)  # it changes what others may read
            return constant(node, args, kwargs)
        if not args:
            raise self._unknown(node)
        target, first = node.target, args[0]
        if (target in ADD or target in ADD_IN_PLACE or target in SCALE) and len(args) > 2:
            raise self._unknown(node)  # an old way to give a sum its factor
        if target in ADD or target in ADD_IN_PLACE or target in SCALE:
            if not kwargs:
                by_sign = self.by_sign and target in BY_SIGN and isinstance(node.args[0], fx.Node)
                self._check_alone(node, by_sign or target in ADD_IN_PLACE, of_its_own=True)
                return self._scaled(node, args) if target in SCALE else self._sum(node, args)
        elif target in JOIN:
            by = torch.stack([m.by.square() for m in moving]).sum().sqrt()
            return self._made(node, args, kwargs, replace(moving[0], by=by, shape=Shape.new()))
        elif (target is getattr and args[1] in ATTRIBUTES) or target in READ:
            return ShapesNotKnown() if first.centre is None else concretely(node, args, kwargs)
        elif len(moving) == 1 and moving[0] is first:
            return self._of_one(node, args, kwargs)
        raise self._unknown(node)

    def _of_one(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation on one moving value, its first argument."""
        target, first = node.target, args[0]
        if target in LAYERS and not holds_unknown((args[1:], kwargs)):
            layer = self._as_layer(node, args[1:], kwargs)
            self._check_alone(node, getattr(layer, "inplace", False), of_its_own=True)
            return self.through(layer, first)
        if target is operator.getitem and is_basic(args[1]):
            return self._made(node, args, kwargs, replace(first, shape=Shape.new()))
        if target in REARRANGE and not any(isinstance(arg, torch.dtype) for arg in (*args, *kwargs.values())):
            return self._made(node, args, kwargs, replace(first, shape=Shape.new()))
        if target in MEAN:
            made = self._made(node, args, kwargs, replace(first, shape=Shape.new()))
            return (
                made if made.centre is None else replace(made, by=made.by * _gain_of_mean(first.centre, args, kwargs))
            )
        if target in EXPAND and first.centre is not None:
            made = self._made(node, args, kwargs, first)
            return replace(made, by=made.by * math.sqrt(made.centre.numel() / first.centre.numel()))
        if target in SPLIT and first.centre is not None:
            parts = concretely(node, args, kwargs)
            return tuple(replace(first, centre=part, shape=Shape.new()) for part in parts)
        if target is F.dropout and kwargs.get("training", True) is False:
            return first
        raise self._unknown(node)

    def _layer(
        self, node: fx.Node, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], moving: list[Moved]
    ) -> Any:
        if not moving:
            with torch.no_grad(), in_evaluation(layer):
                return layer(*args, **kwargs)
        first: Any = args[0] if args else None
        if isinstance(layer, nn.MultiheadAttention):
            alone = all(value is None for name, value in kwargs.items() if "mask" in name)
            if len(args) == len(moving) == 3 and all(value is first for value in args) and alone:
                return self.through(layer, first), NotKnown()
            raise self._unknown(node)
        if not args or len(moving) > 1 or moving[0] is not first or len(args) > 1 or node.kwargs:
            raise self._unknown(node)
        if may_write_to_input(layer):
            steep = [part for part in layer.modules() if getattr(part, "inplace", False)]
            is_gentle = all(float(self.through(part, Moved()).by.detach()) <= 1 for part in steep)
            self._check_alone(node, not is_gentle or first.centre is not None)
        return self.through(layer, first)

    def _sum(self, node: fx.Node, args: tuple[Any, ...]) -> Moved:
        terms = [value for value in args if isinstance(value, Moved)]
        constants = [value for value in args if not isinstance(value, Moved)]
        if all(term.centre is not None for term in terms):
            made = concretely(node, args, {})
            repeats = [math.sqrt(made.numel() / term.centre.numel()) for term in terms if term.centre is not None]
            by = torch.stack([term.by * repeat for term, repeat in zip(terms, repeats, strict=True)]).sum()
            return replace(terms[0], by=by, centre=made)
        numbers = all(isinstance(c, (int, float)) or (isinstance(c, Tensor) and c.numel() == 1) for c in constants)
        if not numbers or not all(term.has_shape_of(terms[0]) for term in terms):
            raise ValueError(
                f"module: expected around=, an example of the input, without which it is not known whether "
                f"{type(self.module).__name__} repeats a term of {node.format_node()}."
            )
        return replace(terms[0], by=torch.stack([term.by for term in terms]).sum())

    def _scaled(self, node: fx.Node, args: tuple[Any, ...]) -> Moved:
        """By a number; a product of two moving values has no bound, nor one over a moving value."""
        if node.target in {operator.neg, torch.neg, "neg"}:
            return self._made(node, args, {}, args[0])
        value, number = args if isinstance(args[0], Moved) else args[::-1]
        divides = node.target in {operator.truediv, torch.div, "div"}
        is_one = isinstance(number, (int, float)) or (isinstance(number, Tensor) and number.numel() == 1)
        repeats = 1.0
        if isinstance(number, Tensor) and not is_one and isinstance(value, Moved) and value.centre is not None:
            made = concretely(node, args, {})
            is_one, repeats = True, math.sqrt(made.numel() / value.centre.numel())
        if not is_one or not isinstance(value, Moved) or (divides and value is not args[0]):
            raise self._unknown(node)
        size = torch.as_tensor(number, dtype=torch.float64, device="cpu").abs()
        factor = (1 / size if divides else size).amax() * repeats
        return self._made(node, args, {}, replace(value, by=value.by * factor))

    def _made(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], made: Moved) -> Any:
        """With the centre that the operation gives, where there is one."""
        if made.centre is None:
            return made
        return replace(made, centre=concretely(node, args, kwargs))

    def _as_layer(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
        try:
            if len(args) > 4:
                raise TypeError("too many to know their order")
            given = {name: value for name, value in kwargs.items() if name != "antialias" or value}  # of interpolate
            return LAYERS[node.target](*args, **given)
        except TypeError:
            raise self._unknown(node) from None

    # ------------------------------------------------------------------------------------------------------- refusals

    def _check_alone(self, node: fx.Node, in_place: bool, *, of_its_own: bool = False) -> None:
        """What works in place has to be alone with the value that it changes, and with what that is a view of.

        That may be the input only where an attribute tells whoever calls; not for an operation ``of_its_own``.
        """
        written: Any = node.args[0]
        while in_place and isinstance(written, fx.Node) and written.op != "placeholder":
            if len(written.users) > 1 or written.op == "get_attr":
                raise self._unknown(node)
            if written.op == "call_module":
                is_new = isinstance(self.module.get_submodule(str(written.target)), MAKES_ANEW)
            else:
                is_new = written.target in ADD | SCALE | JOIN | MEAN
            if is_new:
                return
            written = written.args[0]
        if in_place and (of_its_own or not isinstance(written, fx.Node) or len(written.users) > 1):
            raise self._unknown(node)

    def _output(self, found: Any, value: Moved) -> Moved:
        if isinstance(found, Moved):
            return found
        if isinstance(found, Tensor):  # it does not move at all
            return replace(
                value, by=value.by * 0, centre=found if value.centre is not None else None, shape=Shape.new()
            )
        raise TypeError(
            f"module: no Lipschitz bound is known for {type(self.module).__name__}, which returns no single tensor; "
            "give it one with lipschitz_bound.register."
        )

    def _unknown(self, node: fx.Node) -> TypeError:
        what = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target)
        return TypeError(
            f"module: no Lipschitz bound is known for {what!r} in the forward of {type(self.module).__name__}; "
            "give the class one with lipschitz_bound.register."
        )
