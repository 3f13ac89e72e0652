"""A convolution on a circle, frequency by frequency: where images are waves it is a small matrix at each.

Note [Symbols]
~~~~~~~~~~~~~~
On a circle of N = F s pixels a convolution with stride s writes F windows. Of the pixels let those of one phase,
ρ = i mod s, be a signal of F entries each (polyphase): the convolution is then s convolutions of stride 1, summed. The
Fourier transform, which is unitary, makes each of them a multiplication: at frequency f of F the matrix

    H_f = Σ_j K_j e^{-2πi f q_j / F},  d j = q_j s + ρ_j,  tap j in the columns of phase ρ_j,

rows × (columns · s), and the singular values of the convolution are those of all H_f together (Sedghi, Gupta, Long,
2019, for s = 1). Real kernels have H_{-f} = conj(H_f): half of the frequencies of the last side are computed. A sum
over taps, side after side, is as fast as an FFT for kernels of common sizes, and takes strides and dilation as they
come.

Note [Twists]
~~~~~~~~~~~~~
On a twisted circle pixels change their sign where it closes: its frequencies are f + 1/2. An image with zeros around
it does not reach from one side of that place to the other, so that it lies on either circle (Note [Zeros on a
circle]), and both bound its singular values, one by one. Where the norm is greatest at frequency 0, as that of smooth
kernels, the twisted circle has its frequencies beside it, as the waves have that fit an image with nothing around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param.functional.convolution.geometry import Geometry

Twists = Sequence[bool]


def symbols(
    blocks: Tensor, geometry: Geometry, counts: Sequence[int], twists: Twists = (), *, only: int | None = None
) -> Tensor:
    """The matrix at each frequency; see Note [Symbols].

    Args:
        blocks: (groups, rows, columns, taps…), see :meth:`Geometry.blocks`.
        geometry: of the convolution.
        counts: how many frequencies along each side.
        twists: along which sides the circle is a twisted one, see Note [Twists]; none by default.
        only: the one that is wanted, of those that would be returned.

    Returns:
        (frequencies, groups, rows, columns · strides), complex, for the frequencies that :func:`weights` counts.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.frequencies import symbols
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> conv = nn.Conv1d(1, 1, 2, bias=False)
        >>> symbols(torch.ones(1, 1, 1, 2), geometry_of(conv), [3]).flatten().abs()
        tensor([2., 1.])
    """
    groups, rows, columns = blocks.shape[:3]
    complex_type = torch.promote_types(blocks.dtype, torch.complex64)
    found = blocks.to(complex_type).movedim((0, 1, 2), (-3, -2, -1))
    waves = _waves(geometry, counts, twists, complex_type, blocks.device)
    if only is not None:
        places = torch.unravel_index(torch.tensor(only), [len(wave) for wave in waves])
        waves = [wave[place : place + 1] for wave, place in zip(waves, places, strict=True)]
    lead = 1
    for wave in waves:
        taps = wave.shape[-1]
        found = wave.flatten(0, 1) @ found.reshape(lead, taps, -1)
        lead *= wave.shape[0] * wave.shape[1]
    if math.prod(geometry.stride) == 1:
        return found.reshape(lead, groups, rows, columns)
    shape = [length for wave in waves for length in wave.shape[:2]]
    sides = len(waves)
    order = [*range(0, 2 * sides, 2), 2 * sides, 2 * sides + 1, 2 * sides + 2, *range(1, 2 * sides, 2)]
    found = found.reshape(*shape, groups, rows, columns).permute(order)
    return found.reshape(-1, groups, rows, columns * math.prod(geometry.stride))


def taps_of(change: Tensor, geometry: Geometry, counts: Sequence[int]) -> Tensor:
    """The kernel whose symbols are nearest: the inverse of :func:`symbols`, what lies beyond the taps cut off.

    Args:
        change: (frequencies, groups, rows, columns · strides).
        geometry: of the convolution; no side may have more taps of one phase than frequencies.
        counts: as they were.

    Returns:
        (groups, rows, columns, taps…), real.
    """
    groups, rows = change.shape[1:3]
    strides, sides = geometry.stride, len(counts)
    waves = _waves(geometry, counts, (), change.dtype, change.device)
    columns = change.shape[3] // math.prod(strides)
    weighted = change * weights(counts, device=change.device).to(change.dtype).reshape(-1, 1, 1, 1)
    found = weighted.reshape(*(wave.shape[0] for wave in waves), groups, rows, columns, *strides)
    order = [axis for i in range(sides) for axis in (i, sides + 3 + i)]
    found = found.permute(*order, sides, sides + 1, sides + 2)
    for wave in waves:  # taps go behind, so that the next side comes to the front
        found = torch.tensordot(found, wave.conj(), dims=([0, 1], [0, 1]))
    return found.real / math.prod(counts)


def weights(counts: Sequence[int], twists: Twists = (), device: torch.device | None = None) -> Tensor:
    """How many frequencies each of those that are computed stands for, 1 or 2.

    Example:
        >>> from spectral_param.functional.convolution.frequencies import weights
        >>> weights([4]), weights([2, 3]), weights([4], [True])
        (tensor([1, 2, 1]), tensor([1, 2, 1, 2]), tensor([2, 2]))
    """
    *others, last = counts
    is_twisted = bool(twists) and twists[-1]
    half = torch.full((_half(last, is_twisted),), 2, device=device)
    if not is_twisted:
        half[0] = 1
    if last % 2 == is_twisted:
        half[-1] = 1
    return half.repeat(math.prod(others))


def circular_singular_values(blocks: Tensor, geometry: Geometry, counts: Sequence[int], twists: Twists = ()) -> Tensor:
    """All singular values of a convolution on a circle, unsorted and each as often as it is there; differentiable.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.frequencies import circular_singular_values
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> circular_singular_values(torch.ones(1, 1, 1, 2), geometry_of(nn.Conv1d(1, 1, 2)), [3])
        tensor([2.0000, 1.0000, 1.0000])
    """
    sigma = torch.linalg.svdvals(symbols(blocks, geometry, counts, twists))
    return sigma.repeat_interleave(weights(counts, twists, sigma.device), 0).flatten()


def _waves(
    geometry: Geometry, counts: Sequence[int], twists: Twists, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Along each side (frequencies, phases, taps): e^{-2πi f q/F} where the tap is of the phase, 0 where not."""
    found = []
    for i, count in enumerate(counts):
        place = torch.arange(geometry.kernel[i]) * geometry.dilation[i]
        turns, phase = place // geometry.stride[i], place % geometry.stride[i]
        is_twisted = bool(twists) and twists[i]
        doubled = 2 * torch.arange(_half(count, is_twisted) if i == len(counts) - 1 else count) + is_twisted
        angle = (doubled.unsqueeze(1) * turns % (2 * count)).double() * (-math.pi / count)
        is_of_phase = torch.arange(geometry.stride[i]).unsqueeze(1) == phase
        wave = torch.polar(torch.ones_like(angle), angle).unsqueeze(1) * is_of_phase
        found.append(wave.to(device, dtype))
    return found


def _half(count: int, is_twisted: bool) -> int:
    """How many frequencies there are without those that are the conjugates of others."""
    return (count + 1) // 2 if is_twisted else count // 2 + 1
