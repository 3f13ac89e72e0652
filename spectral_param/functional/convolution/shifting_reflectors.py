"""Kernels whose operator has the singular values of a matrix: the matrix between shifting reflectors.

Note [Shifting reflectors]
    A reflector turns one direction of the channels around, ``H = I - P - P`` with ``P = u uᵀ / ‖u‖²``. A shifting
    reflector moves it by one pixel instead, ``S = I - P + P z``, with z the shift of an image along one axis: an
    orthogonal operator for images that are closed at their edges, with two taps, that is H at the highest frequency,
    z = -1, and I at z = 1. r of them with orthonormal directions commute: ``S = I - C Cᵀ + C Cᵀ z``, C (n, r). C are
    the first r columns of a product of r reflectors.

    With W = U diag(σ) Vᵀ the operator ``S … S W S … S`` has the σ of W at every frequency, so exactly those of W, each
    as often as there are pixels. One factor a side along each axis makes a kernel of 3 taps, two make one of 5. Those
    on the left move by z and those on the right by 1/z, so that the kernel lies around its middle.

Note [Which kernels]
    In one dimension every orthogonal kernel of k taps is a product of k - 1 such factors and an orthogonal matrix, of
    whatever ranks r (Vaidyanathan's lattice). The ranks are numbers, which training cannot change: each stands for a
    connected piece of its own, of which r = n / 2 on both sides, taken here, is the one of most parameters (Li et al.
    2019). In two dimensions such products, along one axis after the other, are all that are separable (Su et al. 2022)
    and the usual choice for others. Cayley transforms at each frequency, exponentials and Björck's iteration have
    kernels without end or hold only so far as they have converged; here σ is off by the rounding of a few products.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shifted_kernel(weight: Tensor, left: Tensor, right: Tensor, dimensions: int) -> Tensor:
    """The kernel of a matrix between shifting reflectors, Note [Shifting reflectors].

    As a convolution with circular padding, channels turned as ``nn.Conv2d`` does, it has the singular values of the
    matrix, each as often as there are pixels.

    Args:
        weight: W, (p, q) in float32 or float64.
        left: a frame of orthonormal columns for each factor on the left, (f, p, r), f a multiple of d: along each
            axis in turn, the last outermost.
        right: the same on the right, (g, q, r′); f + g an even multiple.
        dimensions: d, of an image.

    Returns:
        (p, q, k, …, k) with k = 1 + (f + g) / d, the middle tap in the middle.

    Example:
        >>> import torch
        >>> from spectral_param.functional.convolution.shifting_reflectors import shifted_kernel
        >>> first = torch.tensor([[[1.0], [0.0]]])  # the first of two channels is moved
        >>> kernel = shifted_kernel(torch.ones(2, 2), first, first, dimensions=1)
        >>> kernel[0, 0], kernel[0, 1]  # there and back, and there alone
        (tensor([0., 1., 0.]), tensor([0., 0., 1.]))
    """
    p, q = weight.shape
    taps = weight.reshape(p, *(1,) * dimensions, q)  # each side's channels outermost, so that products are of matrices
    half = (len(left) + len(right)) // 2
    for i, frame in enumerate(left):
        moved = (frame @ (frame.mT @ taps.flatten(1))).view_as(taps)
        taps = _spread(taps - moved, moved, 1 + i % dimensions, backwards=i >= half)
    for i, frame in enumerate(right, start=len(left)):
        moved = (taps @ frame) @ frame.mT
        taps = _spread(taps - moved, moved, 1 + i % dimensions, backwards=i >= half)
    return taps.movedim(-1, 1)


def _spread(stays: Tensor, moved: Tensor, axis: int, *, backwards: bool) -> Tensor:
    """One tap more along an axis, for what moves, or, backwards, for what stays."""
    first, second = (moved, stays) if backwards else (stays, moved)
    nothing = torch.zeros_like(stays.narrow(axis, 0, 1))
    return torch.cat([first, nothing], axis) + torch.cat([nothing, second], axis)


def shifts_of(p: int, q: int, kernel_size: int, dimensions: int) -> tuple[int, int]:
    """How many factors :func:`shifted_kernel` takes on the left and on the right, as many on both where both can shift.

    One channel alone cannot be shifted in part, and the other side then has all of them.

    Args:
        p: channels on the left.
        q: channels on the right.
        kernel_size: k, odd.
        dimensions: d.

    Example:
        >>> from spectral_param.functional.convolution.shifting_reflectors import shifts_of
        >>> shifts_of(8, 4, 3, 2), shifts_of(8, 1, 3, 2)
        ((2, 2), (4, 0))
    """
    total = (kernel_size - 1) * dimensions
    if p > 1 and q > 1:
        return total // 2, total // 2
    return (total, 0) if p > 1 else (0, total)
