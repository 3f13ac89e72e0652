"""A norm that no image is stretched beyond: from the Gram matrices of the symbols, frequency by frequency.

Note [Gram matrices]
~~~~~~~~~~~~~~~~~~~~
σ_max(H) ≤ ℓ if and only if ℓ² I - G is positive semidefinite, G = HᴴH, which its Cholesky decomposition tells. A power
iteration on all G at once, G of one frequency after another being alike, finds what is reached, and ℓ is somewhat more
than that; frequencies for which it is not enough go on iterating by themselves, until none is left. Delattre,
Barthélemy, Araujo and Allauzen (2023) square G again and again instead: a bound by its norm, for which most
frequencies take as many products as are here used by few.

Of rounding, in arithmetic with unit u: G of H with m rows is off by γ_m tr G at most, and a decomposition of
A = ℓ² I - G that ends is one of a matrix off by Σ_j γ_j A_jj at most (Rump, 2006), with γ_k = 1.5 (k + 4) u, which has
room for complex numbers. Both are taken off the diagonal beforehand; up to 512 rows float32 costs half a percent so.

Note [Between frequencies]
~~~~~~~~~~~~~~~~~~~~~~~~~~
The norm of H(ω), over real ω, may be larger between M frequencies than at them. Let S be its supremum along one side,
at ω*, with ``S = Re v* H(ω*) u`` for unit u, v. In ``g(ω) = Re v* H(ω) D(ω) u`` let D, diagonal and unitary, with
``D(ω*) = I``, shift the columns of each phase so that their exponents lie from -r to r, 2r being the most turns between
two taps of one phase: g is real, of exponential type r, and ``|g| ≤ S = g(ω*)``. By a lemma of Duffin and Schaeffer
``g(ω) ≥ S cos(r (ω - ω*))`` where ``|ω - ω*| ≤ π / r``. One of M frequencies is within π / M of ω*, and so, for
M > 2 r,

    S ≤ max_f ‖H(2π f / M)‖ / cos(π r / M),

one side after the other. Images of all sizes have their frequencies among ω, so the product bounds the circular
convolution of every size, and with Note [Zeros on a circle] that with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.convolution.frequencies import Twists, symbols
from spectral_param.functional.convolution.geometry import Geometry

_BETWEEN = 1.04  # what Note [Between frequencies] may cost, all sides together
_WITHIN = 1.004  # how near the bound at the frequencies is to what is reached
_STEPS = 6  # of the power iteration, before it is asked
_TURNS = 40
_COARSE = 512  # rows up to which float32 is enough
_ENTRIES = 2**22  # of matrices that are decomposed at once


def bound_everywhere(blocks: Tensor, geometry: Geometry) -> Tensor:
    """A norm that images of no size are stretched beyond, with zeros around them or on a circle.

    Never below the supremum over all frequencies, and at most 1.05 times that. Where windows do not overlap it is
    exact.

    Args:
        blocks: (groups, rows, columns, taps…), see :meth:`Geometry.blocks`.
        geometry: of the convolution.

    Returns:
        A scalar of float64, on the device of the kernel. Its derivative is that of the singular value that it bounds,
        scaled as that is.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.functional.convolution.gram import bound_everywhere
        >>> 2 <= bound_everywhere(torch.ones(1, 1, 1, 2), geometry_of(nn.Conv1d(1, 1, 2))) <= 2.1
        tensor(True)
    """
    degrees = _degrees(geometry)
    active = sum(degree > 0 for degree in degrees)
    if active == 0:
        matrices = symbols(blocks.double(), geometry, [1] * len(degrees)).flatten(0, 1)
        return torch.linalg.svdvals(matrices.real).amax() * (1 + 64 * torch.finfo(torch.float64).eps)
    share = math.acos(_BETWEEN ** (-1 / active))
    counts = [2 * math.ceil(math.pi * degree / share / 2) if degree else 1 for degree in degrees]
    pairs = zip(degrees, counts, strict=True)
    between = math.prod(1 / math.cos(math.pi * degree / count) for degree, count in pairs)
    return between * bound_at(blocks, geometry, counts)


def bound_at(blocks: Tensor, geometry: Geometry, counts: Sequence[int], twists: Twists = ()) -> Tensor:
    """The same for a circle of so many frequencies along each side: at most 1.01 times its norm."""
    wide = blocks.double()
    size = float(torch.linalg.vector_norm(wide.detach()))
    if not 0 < size < math.inf:
        return wide.sum() * size  # 0, or not a number
    groups = blocks.shape[0]
    with torch.no_grad():
        bound, place, vector = _greatest(symbols(wide / size, geometry, counts, twists).flatten(0, 1))
    frequency, group = divmod(place, groups)
    found = symbols(wide[group : group + 1] / size, geometry, counts, twists, only=frequency)[0, 0]
    return size * _with_gradient(bound, found, vector)


def bound_of(matrices: Tensor) -> Tensor:
    """The same for matrices that are written out: at most 1.01 times the greatest of their norms.

    Args:
        matrices: (count, rows, columns), real.

    Returns:
        A scalar of float64, with a derivative as that of :func:`bound_everywhere`.

    Example:
        >>> import torch
        >>> from spectral_param.functional.convolution.gram import bound_of
        >>> 2 <= bound_of(torch.diag(torch.tensor([1.0, 2.0])).unsqueeze(0)) <= 2.02
        tensor(True)
    """
    wide = matrices.double()
    size = float(torch.linalg.vector_norm(wide.detach()))
    if not 0 < size < math.inf:
        return wide.sum() * size
    with torch.no_grad():
        bound, place, vector = _greatest(wide / size)
    return size * _with_gradient(bound, wide[place] / size, vector)


def _with_gradient(bound: float, matrix: Tensor, vector: Tensor) -> Tensor:
    """A bound that changes with what a matrix makes of a vector, by which it is nearly reached."""
    matrix = matrix if matrix.shape[1] == len(vector) else matrix.mH
    reached = torch.linalg.vector_norm(matrix @ vector.to(matrix.dtype))
    return bound * (reached / reached.detach())


def _greatest(stack: Tensor) -> tuple[float, int, Tensor]:
    """A bound of σ of all matrices, and which of them reaches nearly as much, for what vector."""
    if stack.shape[-2] < stack.shape[-1]:
        stack = stack.mH
    rows, n = stack.shape[-2:]
    narrow, wide = (torch.complex64, torch.complex128) if stack.is_complex() else (torch.float32, torch.float64)
    dtype = narrow if rows <= _COARSE else wide
    generator = torch.Generator(stack.device).manual_seed(0)
    start = torch.randn(n, 1, dtype=dtype, device=stack.device, generator=generator)
    reached, place, direction = 0.0, 0, start[:, 0]
    bound = 0.0
    count = max(1, _ENTRIES // (rows * n))
    for first in range(0, len(stack), count):
        part = stack[first : first + count].to(dtype)
        product = part.mH @ part
        vectors = _unit(start.expand(len(part), n, 1))[0]
        which = torch.arange(first, first + len(part), device=stack.device)
        for turn in range(_TURNS):
            for _ in range(_STEPS + n // 32):
                before = vectors
                vectors, squares = _unit(product @ vectors)
            top = int(squares.argmax())
            if (most := float(squares[top])) > reached:
                reached, place, direction = most, int(which[top]), before[top, :, 0]
            level = reached * (_WITHIN**2 + 0.002 * max(0, turn - 2))  # more, where rounding may be more
            left = ~_is_below(product, level, rows)
            if not left.all():
                bound = max(bound, level)
            if not left.any():
                break
            product, vectors, which = product[left], vectors[left], which[left]
        else:
            bound = max(bound, float(torch.linalg.vector_norm(part, dim=(1, 2), dtype=part.dtype).amax()) ** 2 * 1.01)
    return bound**0.5, place, direction


def _unit(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors (count, n, 1) at unit length, and their lengths."""
    parts = torch.view_as_real(vectors) if vectors.is_complex() else vectors.unsqueeze(-1)
    lengths = torch.linalg.vector_norm(parts.flatten(1), dim=1)
    parts = parts / lengths.clamp_min(torch.finfo(lengths.dtype).tiny).reshape(-1, 1, 1, 1)
    return torch.view_as_complex(parts) if vectors.is_complex() else parts.squeeze(-1), lengths


def _is_below(product: Tensor, level: float, rows: int) -> Tensor:
    """Whether the eigenvalues of Gram matrices are below a level for certain; see Note [Gram matrices]."""
    shifted = -product
    n = product.shape[-1]
    diagonal = shifted.diagonal(dim1=-2, dim2=-1)
    of_product = _gamma(rows, product.dtype) * -diagonal.real.sum(-1)
    gammas = _gamma(torch.arange(1, n + 1, device=product.device), product.dtype)
    of_decomposition = ((level + diagonal.real).clamp_min(0) * gammas).sum(-1)
    diagonal += (level - of_product - of_decomposition).unsqueeze(-1)
    return torch.linalg.cholesky_ex(shifted).info == 0


def _gamma(count: Any, dtype: torch.dtype) -> Any:
    """What a sum of so many products is off by, in terms of the products' sizes."""
    return 0.75 * (count + 4) * torch.finfo(dtype).eps


def _degrees(geometry: Geometry) -> list[float]:
    """Half of the most turns between two taps of one phase, along each side; r in the note."""
    found = []
    for kernel, stride, dilation in zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True):
        turns: dict[int, list[int]] = {}
        for tap in range(kernel):
            turns.setdefault(tap * dilation % stride, []).append(tap * dilation // stride)
        found.append(max(max(t) - min(t) for t in turns.values()) / 2)
    return found
