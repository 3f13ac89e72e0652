"""What is known of a value within a network: how far it moves, what shape it has, and where it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

Step = tuple[Any, ...]


@dataclass(frozen=True)
class Shape:
    """What became of the shape of an input that is not known; equal ones are of equal shapes.

    Attributes:
        channels: of dim 1 at first and now, where they differ.
        last: of the last dim at first and now, where they differ.
        sides: what was done to the sides of an image: at each step, for each side, a stride, how many pixels more or
            fewer, and how it is rounded.
        unknown: a mark of its own where nothing is known.
    """

    channels: tuple[int, int] | None = None
    last: tuple[int, int] | None = None
    sides: tuple[Step, ...] = ()
    unknown: object = None

    @staticmethod
    def new() -> Shape:
        """A shape of which nothing is known."""
        return Shape(unknown=object())

    def with_channels(self, before: int, after: int) -> Shape:
        """After a convolution, but for its sides."""
        if self.unknown is not None or self.last is not None:
            return Shape.new()
        first = before if self.channels is None else self.channels[0]
        return replace(self, channels=None if first == after else (first, after))

    def with_sides(self, steps: Step) -> Shape:
        """After windows of one size."""
        if self.unknown is not None or self.last is not None:
            return Shape.new()
        sides = (*self.sides, steps)
        if len(sides) > 1 and all(stride == 1 for step in sides[-2:] for stride, _, _ in step):
            joined = tuple((1, a[1] + b[1], "") for a, b in zip(*sides[-2:], strict=True))
            sides = (*sides[:-2], joined)
        return replace(self, sides=sides[:-1] if all(step == (1, 0, "") for step in sides[-1]) else sides)

    def with_last(self, before: int, after: int) -> Shape:
        """After a linear layer."""
        if self.unknown is not None or self.channels is not None or self.sides:
            return Shape.new()
        first = before if self.last is None else self.last[0]
        return Shape(last=None if first == after else (first, after))


@dataclass(frozen=True)
class Moved:
    """A value that moves by at most ``by`` where the input of the whole moves by 1, Euclidean over a sample.

    Attributes:
        by: a scalar of float64, on the CPU.
        shape: of the value.
        centre: the value at the centre of a ball of inputs, with a batch dimension, or none for all inputs.
        radius: of the ball.
    """

    by: Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.float64))
    shape: Shape = field(default_factory=Shape)
    centre: Tensor | None = None
    radius: float = math.inf

    @property
    def reach(self) -> float:
        """How far it can be from its centre."""
        return math.inf if self.centre is None else float(self.by.detach()) * self.radius

    def through(self, module: nn.Module, factor: Tensor, shape: Shape) -> Moved:
        """After a module that is so steep."""
        centre = self.centre
        if centre is not None:
            with torch.no_grad(), in_evaluation(module):
                centre = module(centre.clone())  # some work in place
            if not isinstance(centre, Tensor):
                raise TypeError(f"module: expected {type(module).__name__} to return one tensor, got {type(centre)}.")
        return replace(self, by=self.by * factor.to("cpu", torch.float64), shape=shape, centre=centre)

    def has_shape_of(self, other: Moved) -> bool:
        """Whether both are of one shape for certain."""
        if self.centre is not None and other.centre is not None:
            return self.centre.shape == other.centre.shape
        return self.shape == other.shape


@contextmanager
def in_evaluation(module: nn.Module) -> Iterator[None]:
    """All its modules in evaluation, by their flags alone."""
    trained = [part for part in module.modules() if part.training]
    for part in trained:
        part.training = False
    try:
        yield
    finally:
        for part in trained:
            part.training = True
