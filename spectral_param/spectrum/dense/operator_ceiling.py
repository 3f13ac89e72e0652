"""A cap on the singular values of a plain convolution as a map of images, from step to step.

Note [Kernels below a cap]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Kernels whose circular convolution has σ_max ≤ cap are a convex set, and so are those of so many taps. A kernel is
moved to where they meet by projecting onto one after the other: the σ at each frequency that are above the cap are
moved to it, d, and of that all but the taps is cut off, P d, which brings some σ above the cap again. Every kernel
z that is sought has ⟨z - K, P d⟩ = ⟨z - K, d⟩ ≥ ‖d‖², so that K + λ P d comes nearer to all of them for λ = ‖d‖² /
‖P d‖² ≥ 1 (Pierra, 1984), which takes a fraction of the turns of λ = 1. They are below edge = cap (1 + tolerance)
after some turns; were it more than 50, the kernel is scaled for the rest. Frequencies below the edge are left
alone, as are all σ below the cap. The circle is the image itself, or the one that the image lies on with its
padding (Note [Zeros on a circle]).

As with matrices (Note [Ceilings]) σ_max < edge is certain, by a Cholesky decomposition at each frequency, and this is
asked only where it may be otherwise: not while the kernel is near to one that was asked about, ‖H_f(K) - H_f(R)‖
being at most √windows ‖K - R‖_F, and not where a warm power iteration on the image, two convolutions a step, has found
more.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectral_param.functional.convolution.frequencies import symbols, taps_of, weights
from spectral_param.functional.convolution.geometry import Geometry
from spectral_param.functional.convolution.gram import bound_at
from spectral_param.functional.convolution.padding import circle
from spectral_param.functional.convolution.power import power_step
from spectral_param.spectrum.dense.gram import gram, is_below
from spectral_param.spectrum.dense.projection import capped
from spectral_param.torch_state.precision import full_precision, wide
from spectral_param.torch_state.shards import whole, write_

_TURNS = 50


class OperatorCeiling:
    """Holds σ_max ≤ cap (1 + tolerance) of one plain convolution, step after step; see the note.

    Args:
        geometry: of the module.
        image: sides of what the module is given.
        cap: where singular values that are too large are moved to, positive.
        tolerance: how far above they may be, relative and positive.
        remember: whether a copy of the kernel is kept while it is far from the edge.

    Raises:
        ValueError: if the image does not suit the convolution.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import spectral_norm
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.spectrum.dense.operator_ceiling import OperatorCeiling
        >>> conv = nn.Conv2d(4, 4, 3, padding=1)
        >>> _ = nn.init.ones_(conv.weight)
        >>> OperatorCeiling(geometry_of(conv), (16, 16), cap=2.0).hold_(conv.weight)
        True
        >>> 1.9 < spectral_norm(conv, operator=(16, 16)).item() <= 2.02
        True
    """

    def __init__(
        self,
        geometry: Geometry,
        image: tuple[int, ...],
        cap: float,
        tolerance: float = 0.01,
        *,
        remember: bool = True,
    ) -> None:
        self.geometry, self.image = geometry, image
        counts, stretch = circle(geometry, geometry.sides(image))
        turns = [reach // stride + 1 for reach, stride in zip(geometry.reach, geometry.stride, strict=True)]
        self.counts = [n * math.ceil(t / n) for n, t in zip(counts, turns, strict=True)]  # taps have to come back
        self.cap = cap / stretch
        self.edge = self.cap * (1 + tolerance)
        self.remember = remember
        self._distance = math.sqrt(math.prod(turns))  # by which ‖K - R‖_F counts
        self._found: Tensor | None = None  # an image that is stretched a lot
        self._reference: Tensor | None = None  # R
        self._level = 0.0  # below which σ_max of R is
        self._stretch = stretch

    @torch.no_grad()
    def hold_(self, weight: Tensor) -> bool:
        """Caps the kernel in place where it is due, and says whether it was.

        What is not finite stays as it is. A collective for a ``DTensor``, with the same answer on every rank.

        Args:
            weight: the kernel, as the module has it.
        """
        if self._is_near(weight):
            return False
        self._reference = None
        entire = wide(whole(weight.detach()))
        if not entire.isfinite().all():
            return False
        with full_precision(weight.device.type):
            at_least = self._power(entire) / self._stretch
            if at_least <= self.edge and self._is_below(weight, entire, at_least):
                return False
            lowered = self._lowered(weight, entire)
        if lowered is None:
            return False
        write_(weight, lowered)
        return True

    def _is_near(self, weight: Tensor) -> bool:
        """Whether the kernel is so near to what was certified that it is below the edge."""
        if self._reference is None:
            return False
        moved = weight.detach() - self._reference
        distance = whole(torch.linalg.vector_norm(moved, dtype=torch.promote_types(moved.dtype, torch.float32)))
        return self._level + 1.01 * self._distance * distance.item() < self.edge

    def _power(self, weight: Tensor) -> float:
        """What the convolution is found to stretch an image by."""
        steps = 1
        if self._found is None:
            channels = weight.shape[0] if self.geometry.transposed else weight.shape[1] * self.geometry.groups
            generator = torch.Generator(weight.device).manual_seed(0)
            shape = (1, channels, *self.image)
            self._found = torch.randn(shape, dtype=weight.dtype, device=weight.device, generator=generator)
            steps = 5
        for _ in range(steps):
            stretched, self._found = power_step(weight, self.geometry, self._found.to(weight))
        return float(stretched)

    def _is_below(self, weight: Tensor, entire: Tensor, at_least: float) -> bool:
        """Whether σ_max is below the edge for certain; where it is a good way below, the kernel is kept."""
        product = gram(self._symbols(entire))
        level = max(at_least * self.edge, self.edge**2 / 16) ** 0.5
        if self.remember and level <= 0.98 * self.edge and is_below(product, level).all():
            self._reference, self._level = weight.detach().clone(), level
            return True
        return bool(is_below(product, self.edge).all())

    def _lowered(self, weight: Tensor, entire: Tensor) -> Tensor | None:
        """The kernel below the edge, in the dtype of the weight; none where it is already there."""
        for turn in range(_TURNS):
            stack = self._symbols(entire)
            product = gram(stack)
            due = ~is_below(product, self.edge)
            if not due.any():
                return entire.to(weight.dtype) if turn else None
            change = torch.zeros_like(stack)
            change[due] = capped(stack[due], product[due], self.cap) - stack[due]
            entire = entire + self._cut_back(change.unflatten(0, (-1, self.geometry.groups))).reshape(entire.shape)
            entire = entire.to(weight.dtype).to(entire.dtype)  # as it will be stored
        norm = float(bound_at(self.geometry.blocks(entire), self.geometry, self.counts))
        return (entire * min(1.0, self.cap / norm)).to(weight.dtype)

    def _cut_back(self, change: Tensor) -> Tensor:
        """What is left of a change of the symbols in the taps, as many times as it still leads nearer."""
        taps = taps_of(change, self.geometry, self.counts)
        counted = weights(self.counts, device=change.device).reshape(-1, 1, 1, 1) / math.prod(self.counts)
        entire, left = (counted * change.abs().square()).sum(), taps.square().sum()
        return taps * torch.where(left > 0, entire / left, 1).clamp(1, 1e4)

    def _symbols(self, weight: Tensor) -> Tensor:
        return symbols(self.geometry.blocks(weight), self.geometry, self.counts).flatten(0, 1)
