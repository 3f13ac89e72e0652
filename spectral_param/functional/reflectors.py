"""Reflectors as they are stored, and their lengths.

Stored they are without their zeros: a lower trapezoid n×m ↔ its n m - m (m - 1) / 2 numbers, row by row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spectral_param.torch_state.modes import under_dispatch_mode


def pack(dense: Tensor, *, plainly: bool = True) -> Tensor:
    """Drops what stands above the diagonal: (…, n, m) → (…, packed_size(n, m)), contiguous.

    Args:
        dense: the numbers.
        plainly: as for :func:`unpack`.

    Example:
        >>> import torch
        >>> from spectral_param.functional.reflectors import pack
        >>> pack(torch.tensor([[1, 0], [2, 3], [4, 5]]))
        tensor([1, 2, 3, 4, 5])
    """
    m = dense.shape[-1]
    triangle = _indices(_triangle, m, dense.device, plainly=plainly)
    top = dense[..., :m, :].flatten(-2).index_select(-1, triangle)
    return torch.cat([top, dense[..., m:, :].flatten(-2)], dim=-1)


def unpack(packed: Tensor, n: int, m: int, *, plainly: bool = True) -> Tensor:
    """Puts the zeros back: (…, packed_size(n, m)) → (…, n, m).

    Args:
        packed: the numbers.
        n: rows.
        m: columns.
        plainly: makes index tensors anew, as tracers and transforms want them; ``False``: keeps them for the next call.

    Example:
        >>> import torch
        >>> from spectral_param.functional.reflectors import unpack
        >>> unpack(torch.tensor([1, 2, 3, 4, 5]), 3, 2)
        tensor([[1, 0],
                [2, 3],
                [4, 5]])
    """
    size = m * (m + 1) // 2
    top, rest = packed[..., :size], packed[..., size:]
    batch = packed.shape[:-1]
    triangle = _indices(_triangle, m, packed.device, plainly=plainly)
    square = packed.new_zeros(*batch, m * m).index_copy(-1, triangle, top).reshape(*batch, m, m)
    return square if n == m else torch.cat([square, rest.reshape(*batch, n - m, m)], dim=-2)


def _triangle(m: int, device: torch.device) -> Tensor:
    """Where the lower triangle of an m×m matrix lies in its m² numbers."""
    rows, columns = torch.tril_indices(m, m, device=device)
    return rows * m + columns


def unpack_both(u: Tensor, v: Tensor, p: int, q: int, m1: int, m2: int) -> Tensor:
    """Unpacks two trapezoids, p×m₁ and q×m₂, into (…, 2, max(p, q), max(m₁, m₂)), the rest zero; without a graph.

    Example:
        >>> import torch
        >>> from spectral_param.functional.reflectors import unpack_both
        >>> unpack_both(torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6]), 3, 2, 1, 2)
        tensor([[[1, 0],
                 [2, 0],
                 [3, 0]],
                [[4, 0],
                 [5, 6],
                 [0, 0]]])
    """
    numbers = torch.cat([u, v, u.new_zeros(*u.shape[:-1], 1)], -1)
    source = _indices(_source, p, q, m1, m2, u.device, plainly=False)
    return numbers.index_select(-1, source).view(*u.shape[:-1], 2, max(p, q), max(m1, m2))


def pack_both(stacked: Tensor, p: int, q: int, m1: int, m2: int) -> tuple[Tensor, Tensor]:
    """What :func:`unpack_both` unpacks; without a graph.

    Example:
        >>> import torch
        >>> from spectral_param.functional.reflectors import pack_both
        >>> pack_both(torch.arange(8).view(2, 2, 2), 2, 2, 1, 2)
        (tensor([0, 2]), tensor([4, 6, 7]))
    """
    numbers = stacked.flatten(-3)
    of_u, of_v = _indices(_places, p, q, m1, m2, stacked.device, plainly=False)
    return numbers.index_select(-1, of_u), numbers.index_select(-1, of_v)


def _places(p: int, q: int, m1: int, m2: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where in the flattened stack the packed numbers of U and of V stand."""
    n, m = max(p, q), max(m1, m2)
    grid = torch.arange(2 * n * m, device=device).view(2, n, m)
    return pack(grid[0, :p, :m1]), pack(grid[1, :q, :m2])


def _source(p: int, q: int, m1: int, m2: int, device: torch.device) -> Tensor:
    """For each entry of the stack, where its number stands among those of U, those of V, and a zero."""
    places = torch.cat(_places(p, q, m1, m2, device))
    source = torch.full((2 * max(p, q) * max(m1, m2),), len(places), device=device)
    source[places] = torch.arange(len(places), device=device)
    return source


# By squares: torch's norm takes five times as long down columns.
def lengths(y: Tensor) -> Tensor:
    """‖column‖ (…, 1, m) of (…, n, m), safe from overflow and underflow; for float32 in float64."""
    if y.dtype == torch.float32 and y.device.type != "mps":  # float64 squares hold every float32
        return y.double().square().sum(-2, keepdim=True).sqrt()
    scale = y.detach().abs().amax(-2, keepdim=True).clamp_min(torch.finfo(y.dtype).tiny)
    return (y / scale).square().sum(-2, keepdim=True).sqrt() * scale


def directions(reflectors: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`scaled` of the lower trapezoid."""
    return scaled(reflectors.tril())


def scaled(y: Tensor) -> tuple[Tensor, Tensor]:
    """``Z = c u`` with ‖z‖ = √2, (…, n, m), and c = √2/‖u‖, (…, 1, m); both zero where u is zero."""
    length = lengths(y)
    zero = length < torch.finfo(y.dtype).tiny
    c = (math.sqrt(2.0) / length.masked_fill(zero, 1.0)).masked_fill(zero, 0.0).to(y.dtype)
    return y * c, c


def normalized(reflectors: Tensor) -> Tensor:
    """Scales every reflector to unit length, which changes no H; zero ones, and those of unit length, keep their bits.

    Args:
        reflectors: (…, n, m) float32 or float64; norms from 1e-37 to 1e37 are told from zero.

    Returns:
        (…, n, m), zero above the diagonal.

    Example:
        >>> import torch
        >>> from spectral_param.functional.reflectors import normalized
        >>> normalized(torch.tensor([[3e-15], [4e-15]]))
        tensor([[0.6000],
                [0.8000]])
    """
    return of_unit_length(reflectors.tril())


def of_unit_length(y: Tensor) -> Tensor:
    """:func:`normalized` of columns of full length, (…, n, m)."""
    z, c = scaled(y)
    is_unit = (c / math.sqrt(2.0) - 1).abs() <= 4 * torch.finfo(c.dtype).eps
    return torch.where(is_unit, y, z / math.sqrt(2.0))


@functools.lru_cache(maxsize=64)
def _once(make: Callable[..., Any], *arguments: Any) -> Any:
    with torch.inference_mode(False):
        return make(*arguments)


def _indices(make: Callable[..., Any], *arguments: Any, plainly: bool) -> Any:
    """Index tensors are made once for each size, and anew where a mode of torch might make something else of them."""
    return make(*arguments) if plainly or under_dispatch_mode() else _once(make, *arguments)
