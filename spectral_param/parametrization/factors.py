"""Which trained tensors stand for a weight, and in which order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from spectral_param.functional.reflectors import pack
from spectral_param.sizes import Sizes, packed_size

T = TypeVar("T")


class Layout(NamedTuple):
    """The reflectors of U, the raw numbers of σ and the reflectors of V, some of which may be missing.

    Attributes:
        sizes: of a block.
        chunks: how many blocks.
        places: where U, raw σ and V stand among the trained tensors; -1 for what is not there.

    Example:
        >>> from spectral_param.parametrization.factors import layout_of
        >>> from spectral_param.sizes import Sizes
        >>> layout_of(Sizes(4, 3, 2, 0), chunks=1, trains_sigma=True)
        Layout(sizes=Sizes(p=4, q=3, m1=2, m2=0), chunks=1, places=(0, 1, -1))
    """

    sizes: Sizes
    chunks: int
    places: tuple[int, int, int]

    @property
    def lead(self) -> tuple[int, ...]:
        """The dimension of the blocks, where there are several."""
        return (self.chunks,) if self.chunks > 1 else ()

    def pack(self, u: Tensor, raw: Tensor, v: Tensor) -> list[Tensor]:
        """The trained tensors from dense reflectors of all blocks, (chunks, n, m), and raw σ, (chunks, k)."""
        return self.of_those_there(part if self.chunks > 1 else part[0] for part in (pack(u), raw, pack(v)))

    def empty(self, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Trained tensors with nothing in them."""
        p, q, m1, m2 = self.sizes
        lengths = packed_size(p, m1), self.sizes.k, packed_size(q, m2)
        return [torch.empty(*self.lead, length, device=device, dtype=dtype) for length in self.of_those_there(lengths)]

    def of_those_there(self, each: Iterable[T]) -> list[T]:
        """Of what there is for U, for raw σ and for V, that of the trained tensors which are not missing."""
        return [one for one, place in zip(each, self.places, strict=True) if place >= 0]

    @property
    def sides(self) -> list[Side]:
        """The trained tensors of reflectors."""
        (p, q, m1, m2), (at_u, _, at_v) = self.sizes, self.places
        both = Side("U", at_u, p, m1, self.chunks), Side("V", at_v, q, m2, self.chunks)
        return [side for side in both if side.m]


class Side(NamedTuple):
    """A trained tensor of reflectors.

    Attributes:
        name: what they make.
        place: where it stands among the trained tensors.
        n: entries of a reflector.
        m: reflectors of a block.
        blocks: how many.
    """

    name: str
    place: int
    n: int
    m: int
    blocks: int


def layout_of(sizes: Sizes, chunks: int, trains_sigma: bool) -> Layout:
    """The layout of blocks of such sizes.

    Args:
        sizes: of a block.
        chunks: how many blocks.
        trains_sigma: whether σ has raw numbers.

    Example:
        >>> from spectral_param.parametrization.factors import layout_of
        >>> from spectral_param.sizes import Sizes
        >>> [tuple(t.shape) for t in layout_of(Sizes(4, 3, 2, 1), 5, False).empty(torch.float32, torch.device("cpu"))]
        [(5, 7), (5, 3)]
    """
    present = sizes.m1 > 0, trains_sigma, sizes.m2 > 0
    u, raw, v = (sum(present[:i]) if here else -1 for i, here in enumerate(present))
    return Layout(sizes, chunks, (u, raw, v))
