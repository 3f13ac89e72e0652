"""A cap on the singular values of a plain weight that moves: held for certain, and most often for little.

Note [Ceilings]
~~~~~~~~~~~~~~~
Held is σ_max ≤ edge = cap (1 + tolerance). From the cheap to the dear, and no further than needed:

1. A copy R of the weight whose σ_max was once found below a level: σ_max(W) ≤ level + ‖W - R‖_F, whatever has been done
   to W since. One pass over the weight.
2. The certificate at the edge (Note [Certificates]), from the Gram matrix.
3. Where there is one, a second, at a level between the edge and what a warm power iteration finds, which begins a new
   R. That is worth its time for a weight that stays near R for a while; where it did not, it is not tried again for
   twice as long as the last time.
4. Where there is none, the cap, which leaves what lies below it where it is: by an eigendecomposition, or on a GPU in
   matrix products alone (Note [Cap by products]), unless σ is far above or the tolerance too small for these.

Whether the weight is changed rests on the weight alone: none of this has to be saved with a checkpoint.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.parametrization.blocks import Matrices
from spectral_param.spectrum.dense.gram import gram, is_below
from spectral_param.spectrum.dense.products import CLOSEST, FARTHEST, capped_by_products
from spectral_param.spectrum.dense.projection import capped
from spectral_param.torch_state.precision import full_precision, wide
from spectral_param.torch_state.shards import whole, write_

_STEPS = 2  # of the power iteration, which is warm but for its first time
_LONGEST = 64  # checks without a copy, for a weight that moves far in a step
_ORDINARY = 1e-12, 1e12  # caps whose squares are far from the ends of float32


class Ceiling:
    """Holds σ_max ≤ cap (1 + tolerance) of one plain weight, step after step; see Note [Ceilings].

    Args:
        matrices: how the weight is read.
        cap: where singular values that are too large are moved to, at least 0.
        tolerance: how far above they may be, relative and positive.
        remember: whether a copy of the weight is kept while it is far from the edge.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.parametrization.blocks import matrices_of
        >>> from spectral_param.spectrum.dense.ceiling import Ceiling
        >>> weight = torch.diag(torch.tensor([2.01, 0.5]))
        >>> ceiling = Ceiling(matrices_of(nn.Linear(2, 2), weight), cap=2.0)
        >>> ceiling.hold_(weight), ceiling.hold_(weight.mul_(1.1)), weight.diagonal()
        (False, True, tensor([2.0000, 0.5500]))
    """

    def __init__(self, matrices: Matrices, cap: float, tolerance: float = 0.01, *, remember: bool = True) -> None:
        self.matrices = matrices
        self.cap = cap
        self.edge = cap * (1 + tolerance)
        self.tolerance = tolerance
        self.remember = remember
        self._reference: Tensor | None = None  # R
        self._level = 0.0  # below which σ_max of R is
        self._vectors: Tensor | None = None  # (count, k, 1), of the power iteration
        self._pause, self._wait = 0, 0  # checks without a copy: the next time, and still to go

    @torch.no_grad()
    def hold_(self, weight: Tensor) -> bool:
        """Caps the weight in place where it is due, and says whether it was.

        What is not finite stays as it is. A collective for a ``DTensor``, with the same answer on every rank.

        Args:
            weight: of the shape that ``matrices`` is for.
        """
        if self._is_near(weight):
            return False
        with full_precision(weight.device.type):
            stack, product = self._read(weight)
            is_held = is_below(product, self.edge)
            if is_held.all():
                self._note(weight, product)
                return False
            return self._lower_(weight, stack, product, ~is_held)

    def _is_near(self, weight: Tensor) -> bool:
        """Whether the weight is so near to what was certified that it is below the edge."""
        if self._reference is None:
            return False
        moved = weight.detach() - self._reference
        distance = whole(torch.linalg.vector_norm(moved, dtype=torch.promote_types(moved.dtype, torch.float32)))
        if self._level + 1.01 * distance.item() < self.edge:  # a hundredth for rounding, of bfloat16 too
            self._pause = 0
            return True
        self._let_go()
        return False

    def _read(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The weight as (count, p, q) and its Gram matrices, in float64 where squares would not fit into float32."""
        stack = self.matrices.of(wide(whole(weight.detach())))
        product = gram(stack)
        if not (_ORDINARY[0] < self.cap < _ORDINARY[1] and product.diagonal(dim1=-2, dim2=-1).isfinite().all()):
            stack = stack.double()
            product = gram(stack)
        return stack, product

    def _power(self, product: Tensor) -> Tensor:
        """What σ_max of each matrix is at least, (count,)."""
        steps = _STEPS
        if self._vectors is None or self._vectors.dtype != product.dtype:
            generator = torch.Generator(product.device).manual_seed(0)
            shape = (*product.shape[:-1], 1)
            self._vectors = torch.randn(shape, dtype=product.dtype, device=product.device, generator=generator)
            steps = 5 * _STEPS
        vectors = self._vectors
        for _ in range(steps):
            vectors = torch.nn.functional.normalize(vectors, dim=-2)
            vectors = product @ vectors
        squares = vectors.norm(dim=-2)
        moved = squares.isfinite() & (squares > 0)  # what is not goes on from where it was
        self._vectors = torch.where(moved.unsqueeze(-2), vectors, self._vectors)
        return torch.where(moved, squares, 0).sqrt().squeeze(-1)

    def _note(self, weight: Tensor, product: Tensor) -> None:
        """Keeps a copy of a weight whose σ_max is a good way below the edge for certain."""
        if not self.remember:
            return
        if self._wait > 0:
            self._wait -= 1
            return
        at_least = float(self._power(product).amax())
        level = max(at_least * self.edge, self.edge**2 / 16) ** 0.5
        if level < 0.98 * self.edge and is_below(product, level).all():
            self._reference, self._level = weight.detach().clone(), level
        else:
            self._let_go()

    def _let_go(self) -> None:
        """Keeps no copy for a while, twice as long as the last time."""
        self._reference, self._wait = None, self._pause
        self._pause = min(2 * self._pause + 1, _LONGEST)

    def _lower_(self, weight: Tensor, stack: Tensor, product: Tensor, above: Tensor) -> bool:
        """Moves σ to the cap where it is above the edge, and below where rounding brings it above the edge again."""
        target, changed = self.cap, False
        eps = torch.finfo(weight.dtype).eps
        while True:
            size = product.diagonal(dim1=-2, dim2=-1).sum(-1)  # at least σ_max²
            due = above & size.isfinite()
            if not due.any():
                return changed
            if due.all():
                stack = self._capped(stack, product, target)
            else:
                stack = stack.clone()
                stack[due] = self._capped(stack[due], product[due], target)
            write_(weight, self.matrices.to_weight(stack).to(weight.dtype))
            changed = True
            if 16 * eps * float(size[due].amax().sqrt()) < self.edge - self.cap:  # rounding is no matter
                return changed
            stack, product = self._read(weight)
            above = ~is_below(product, self.edge)
            target *= 1 - max(self.tolerance, 2 * eps)

    def _capped(self, stack: Tensor, product: Tensor, target: float) -> Tensor:
        is_close_enough = self.tolerance > 10 * CLOSEST
        if multiplies_fast(stack.device) and is_close_enough and is_below(product, FARTHEST * target).all():
            return capped_by_products(stack, product, target)
        return capped(stack, product, target)


def multiplies_fast(device: torch.device) -> bool:
    """Whether some fifty matrix products take less time there than an eigendecomposition."""
    return device.type != "cpu"
