"""A norm that no image is stretched beyond: from the Gram matrices of the symbols, by squaring them again and again.

Note [Gram iteration]
~~~~~~~~~~~~~~~~~~~~~
G_0 = H, G_{t+1} = G_tᴴ G_t has σ_max(H) = σ_max(G_t)^{1/2^t} ≤ ‖G_t‖^{1/2^t} for any norm above the spectral one
(Delattre, Barthélemy, Araujo, Allauzen, 2023). Frobenius' is too large by √n at most, of which n^{1/2^{t+1}} is left;
the greatest row sum is exact at once where HᴴH is a multiple of the identity. Of rounding, with
γ = √2 (n + 2) u, ‖fl(GᴴG) - GᴴG‖_F ≤ γ ‖G‖_F². With ‖G‖_F = 1 after each step, ν its Frobenius norm before that,

    σ(G_t)² ≤ ν_{t+1} σ(G_{t+1}) + γ,

followed back from the last step, so that nothing is lost in it. (From the second step on G G stands for GᴴG, which
spares a conjugate; G is Hermitian but for 2 γ / ν_t, by which γ grows.) A column of G_t is what 2^t / 2 steps of a
power iteration make of a unit vector: by how much H stretches it is a norm that is reached, and frequencies that for
certain have no greater one are left out.

Note [Between frequencies]
~~~~~~~~~~~~~~~~~~~~~~~~~~
The norm of H(ω), over real ω, may be larger between M frequencies than at them. Let S be its supremum along one side,
at ω*, with S = Re v* H(ω*) u for unit u, v. In g(ω) = Re v* H(ω) D(ω) u let D, diagonal and unitary, with D(ω*) = I,
shift the columns of each phase so that their exponents lie from -r to r, 2r being the most turns between two taps of
one phase: g is real, of exponential type r, and |g| ≤ S = g(ω*). By a lemma of Duffin and Schaeffer g(ω) ≥ S cos(r (ω
- ω*)) where |ω - ω*| ≤ π / r. One of M frequencies is within π / M of ω*, and so, for M > 2 r,

    S ≤ max_f ‖H(2π f / M)‖ / cos(π r / M),

one side after the other. Images of all sizes have their frequencies among ω, so the product bounds the circular
convolution of every size, and with Note [Zeros on a circle] that with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param.functional.convolution.frequencies import symbols
from spectral_param.functional.convolution.geometry import Geometry

_BETWEEN = 1.04  # what Note [Between frequencies] may cost, all sides together
_WITHIN = 1.008  # how near the bound at the frequencies is to what is reached
_STEPS = 12
_COARSE = 512  # sizes up to which float32 is enough
_ENTRIES = 2**22  # of symbols that are squared at once


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


def bound_at(blocks: Tensor, geometry: Geometry, counts: Sequence[int]) -> Tensor:
    """The same for a circle of so many frequencies along each side: at most 1.008 times its norm."""
    wide = blocks.double()
    size = float(torch.linalg.vector_norm(wide.detach()))
    if not 0 < size < math.inf:
        return wide.sum() * size  # 0, or not a number
    found = symbols(wide / size, geometry, counts).flatten(0, 1)
    if found.shape[-2] < found.shape[-1]:
        found = found.mH
    bound, matrix, vector = _greatest(found.detach())
    reached = torch.linalg.vector_norm(found[matrix] @ vector.to(found.dtype))
    return size * bound * (reached / reached.detach())


@torch.no_grad()
def _greatest(stack: Tensor) -> tuple[float, int, Tensor]:
    """A bound of σ of tall matrices, and which of them reaches nearly as much, for what vector."""
    rows, columns = stack.shape[-2:]
    dtype = torch.complex64 if rows <= _COARSE else torch.complex128
    bound = reached = 0.0
    best, direction = 0, torch.ones(columns, dtype=dtype, device=stack.device)
    count = max(1, _ENTRIES // (rows * columns))
    for start in range(0, len(stack), count):
        kept = stack[start : start + count].to(dtype)
        which = torch.arange(start, start + len(kept), device=stack.device)
        squared = kept.clone()
        norms = [_to_unit_length_(squared)]
        for step in range(_STEPS):
            squared = squared @ squared if step else squared.mH @ squared
            norms.append(_to_unit_length_(squared))
            upper = _followed_back(squared, norms, rows, with_rows=step < 2)
            if step:  # before, columns are no better than those of the kernel
                stretched, vectors = _reached(kept, squared)
                top = int(stretched.argmax())
                if (most := float(stretched[top])) > reached:
                    reached, best, direction = most, int(which[top]), vectors[top]
            counts = upper > _WITHIN * reached
            if not counts.all():
                bound = max(bound, float(upper[~counts].amax()))
                kept, squared, which, upper = kept[counts], squared[counts], which[counts], upper[counts]
                norms = [norm[counts] for norm in norms]
            if not len(kept):
                break
        else:
            bound = max(bound, float(upper.amax()))
    return bound, best, direction


def _to_unit_length_(stack: Tensor) -> Tensor:
    """Divides matrices by their Frobenius norms, in place, and answers these, of float64."""
    parts = torch.view_as_real(stack)
    norms = torch.linalg.vector_norm(parts.flatten(1), dim=1)
    parts /= norms.clamp_min(torch.finfo(norms.dtype).tiny).reshape(-1, 1, 1, 1)
    return norms.double()


def _reached(stack: Tensor, squared: Tensor) -> tuple[Tensor, Tensor]:
    """By how much each matrix stretches the greatest column of its power, and these columns at unit length."""
    place = squared.diagonal(dim1=-2, dim2=-1).real.argmax(-1)
    columns = squared[torch.arange(len(squared), device=squared.device), :, place]
    columns = torch.nn.functional.normalize(torch.view_as_real(columns).flatten(1)).unflatten(1, (-1, 2))
    vectors = torch.view_as_complex(columns)
    stretched = torch.view_as_real((stack @ vectors.unsqueeze(-1)).squeeze(-1)).flatten(1)
    return torch.linalg.vector_norm(stretched, dim=1).double(), vectors


def _followed_back(squared: Tensor, norms: Sequence[Tensor], length: int, *, with_rows: bool) -> Tensor:
    """σ of what was squared is at most this, see Note [Gram iteration]."""
    gamma = (length + 2) * torch.finfo(squared.dtype).eps  # with room for what norms are off by
    found = torch.ones_like(norms[0])
    if with_rows:
        found = torch.view_as_real(squared).abs().sum((-2, -1)).amax(-1).double().clamp_max(1.0)  # |re| + |im|
    found = found * (1 + gamma)
    for norm, before in zip(reversed(norms[1:]), [*reversed(norms[1:-1]), None], strict=True):
        off = gamma if before is None else gamma * (1 + 2 / before)
        found = (norm * found + off).sqrt()
    return norms[0] * found * (1 + gamma)


def _degrees(geometry: Geometry) -> list[float]:
    """Half of the most turns between two taps of one phase, along each side; r in the note."""
    found = []
    for kernel, stride, dilation in zip(geometry.kernel, geometry.stride, geometry.dilation, strict=True):
        turns: dict[int, list[int]] = {}
        for tap in range(kernel):
            turns.setdefault(tap * dilation % stride, []).append(tap * dilation // stride)
        found.append(max(max(t) - min(t) for t in turns.values()) / 2)
    return found
