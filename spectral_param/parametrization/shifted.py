"""The module that holds a convolution's kernel by the singular values of its operator on images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spectral_param.functional.convolution.shifting_reflectors import shifted_kernel, shifts_of
from spectral_param.functional.convolution.strides import spread_over_pixels
from spectral_param.functional.factorization import ReflectorProduct, svd_weight
from spectral_param.functional.fitting import haar_reflectors
from spectral_param.functional.frozen import FrozenProduct
from spectral_param.functional.reflectors import normalized, pack
from spectral_param.functional.ways import Way, is_frozen
from spectral_param.parametrization.blocks import Matrices
from spectral_param.parametrization.factors import Side
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma import SigmaMap
from spectral_param.sizes import packed_size
from spectral_param.torch_state.modes import has_numbers, is_seen_through
from spectral_param.torch_state.precision import full_precision, wide
from spectral_param.torch_state.shards import whole, write_


@dataclass(frozen=True)
class ShiftedKernel(Matrices):
    """A kernel of which no matrix is read: p×q are those of the matrix between the shifts."""

    def of(self, weight: Tensor) -> Tensor:
        """Refuses, for those who look at a kernel that was changed after it was composed."""
        raise ValueError(
            "tensor_name: expected the kernel as its factors make it, which has their σ, got one under another "
            "parametrization."
        )


class ShiftedParametrization(SVDParametrization):
    """Holds a kernel as ``U diag(σ) Vᵀ`` between shifting reflectors, see ``functional/convolution``.

    Behind the reflectors of U, raw σ and those of V stand the reflectors of the shifts on the left and on the right, as
    far as there are any, one after the other in a tensor of one dimension.

    Made by :class:`spectral_param.nn.SVDConv2d` and its kin.

    Attributes:
        stride: how many pixels along each axis are taken for channels of one.
        shifts: how many shifting reflectors stand on the left and on the right.
    """

    def __init__(
        self,
        kernel_shape: tuple[int, ...],
        stride: int,
        reflectors: tuple[int, int],
        sigma_map: SigmaMap,
        *,
        dtype: torch.dtype,
    ) -> None:
        p, q, size, *more = kernel_shape
        self.dimensions = 1 + len(more)
        matrices = ShiftedKernel(kernel_shape, 1, p, q * stride**self.dimensions)
        super().__init__(matrices, reflectors, sigma_map, init="orthogonal", dtype=dtype)
        self.stride = stride
        self.shifts = shifts_of(*self.shape, size // stride, self.dimensions)
        place = sum(place >= 0 for place in self.layout.places)
        self._left = Side("left shifts", place, p, p // 2, self.shifts[0])
        self._right = Side("right shifts", place + (self.shifts[0] > 0), matrices.q, matrices.q // 2, self.shifts[1])
        self._kept_frames = FrozenProduct(), FrozenProduct()

    @property
    def sides(self) -> list[Side]:
        """The factors that are reflectors, the shifts among them."""
        return super().sides + self._of_shifts

    @property
    def _of_shifts(self) -> list[Side]:
        return [side for side in (self._left, self._right) if side.blocks]

    # ----------------------------------------------------------------------------------------------------- evaluation

    def _built(self, factors: tuple[Tensor, ...], way: Way | None) -> Tensor:
        return self._kernel(super()._built(factors, way), factors)

    def inverse_kernel(self) -> Tensor:
        """The kernel whose transpose undoes a square one, of the same U and V and of 1/σ; float32 or float64."""
        u, sigma, v = self.svd
        with full_precision(sigma.device.type):
            matrix = svd_weight(u, 1 / sigma, v, plainly=is_seen_through())
            return self._kernel(matrix, tuple(map(whole, self.factors)))

    def _kernel(self, matrix: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
        """The kernel of a matrix between the shifts."""
        left = self._frames(self._left, factors, self._kept_frames[0])
        right = self._frames(self._right, factors, self._kept_frames[1])
        kernel = shifted_kernel(matrix, left.to(matrix), right.to(matrix), self.dimensions)
        return spread_over_pixels(kernel, self.stride)

    def _frames(self, side: Side, factors: tuple[Tensor, ...], kept: FrozenProduct) -> Tensor:
        """Orthonormal columns, (count, n, r), of what is shifted on a side."""
        if not side.blocks:
            return factors[0].new_empty(0, side.n, 0)
        product, plainly = self._product_of(side, factors[side.place]), is_seen_through()
        if is_frozen(product) and not plainly:
            return kept.columns(product, side.m)
        return ReflectorProduct(wide(product.packed), product.n, product.m).columns(side.m, plainly=plainly)

    @staticmethod
    def _product_of(side: Side, factor: Tensor) -> ReflectorProduct:
        return ReflectorProduct(factor.view(side.blocks, -1), side.n, side.m)

    # ------------------------------------------------------------------------------------------------------- starting

    def right_inverse(self, weight: Tensor) -> list[Tensor]:
        """Answers what :meth:`starting_factors` found, and nothing else: few kernels are between shifts."""
        if self._start is not None:
            return self._start
        if not has_numbers(weight):
            return self._with_shifts(super().right_inverse(weight))
        raise ValueError(
            "weight: expected the factors, as state_dict() of such a layer has them, got a kernel; few kernels have an "
            "operator of known σ."
        )

    def starting_factors(self, weight: Tensor) -> list[Tensor]:
        """Random U, V and shifts around the map's start."""
        if not has_numbers(weight):
            return self.right_inverse(weight)
        return self._with_shifts(super().starting_factors(weight))

    def _with_shifts(self, factors: list[Tensor]) -> list[Tensor]:
        some = factors[0]
        for side in self._of_shifts:
            if has_numbers(some):
                drawn = [pack(haar_reflectors(side.n, side.m)) for _ in range(side.blocks)]
                factors.append(torch.cat(drawn).to(some))
            else:
                factors.append(some.new_empty(side.blocks * packed_size(side.n, side.m)))
        return factors

    # -------------------------------------------------------------------------------------------------------- editing

    @torch.no_grad()
    def renormalize_(self) -> None:
        """Gives every reflector unit length, in place; the kernel changes by rounding alone."""
        super().renormalize_()
        for side in self._of_shifts:
            factor = self.factors[side.place]
            unit = normalized(wide(self._product_of(side, whole(factor)).reflectors()))
            write_(factor, pack(unit).flatten())

    def extra_repr(self) -> str:
        """Shape, reflectors and shifts, for printing."""
        return f"{super().extra_repr()}, shifts={self.shifts}"
