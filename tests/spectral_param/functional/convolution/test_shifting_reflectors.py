import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from spectral_param.functional.convolution.circular_transpose import circular_transpose
from spectral_param.functional.convolution.shifting_reflectors import shifted_kernel, shifts_of
from spectral_param.functional.convolution.strides import spread_over_pixels

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def frames(count: int, n: int, r: int) -> Tensor:
    return torch.linalg.qr(torch.randn(count, n, n, dtype=torch.float64)).Q[..., :r]


def circular(x: Tensor, kernel: Tensor, stride: int = 1) -> Tensor:
    d = x.dim() - 2
    border = (kernel.shape[-1] - stride) // 2
    return CONVOLUTIONS[d](F.pad(x, (border, border) * d, mode="circular"), kernel, stride=stride)


def at_frequency(kernel: Tensor, *z: complex) -> Tensor:
    """Σ kernel[t] zᵗ, with t counted from the middle."""
    values = kernel.to(torch.complex128)
    for factor in reversed(z):
        taps = torch.arange(kernel.shape[-1]) - kernel.shape[-1] // 2
        values = values @ (torch.tensor(factor, dtype=torch.complex128) ** taps)
    return values


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 5), st.sampled_from([1, 2, 3]), st.integers(0, 2), st.integers(0, 9999))
def test_at_every_frequency_it_has_the_singular_values_of_the_matrix(
    p: int, q: int, dimensions: int, steps: int, seed: int
) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(p, q, dtype=torch.float64)
    left, right = frames(steps * dimensions, p, p // 2), frames(steps * dimensions, q, q // 2)
    kernel = shifted_kernel(weight, left, right, dimensions)
    assert kernel.shape == (p, q, *(2 * steps + 1,) * dimensions)
    z = torch.exp(2j * torch.pi * torch.rand(dimensions, dtype=torch.float64)).tolist()
    torch.testing.assert_close(torch.linalg.svdvals(at_frequency(kernel, *z)), torch.linalg.svdvals(weight))


def test_it_is_the_matrix_at_frequency_zero_and_between_reflectors_at_the_highest() -> None:
    weight, left, right = torch.randn(3, 2, dtype=torch.float64), frames(1, 3, 1), frames(1, 2, 1)
    kernel = shifted_kernel(weight, left, right, 1)
    torch.testing.assert_close(at_frequency(kernel, 1.0).real, weight)
    reflectors = [torch.eye(len(c), dtype=torch.float64) - 2 * c @ c.mT for c in (left[0], right[0])]
    torch.testing.assert_close(at_frequency(kernel, -1.0).real, reflectors[0] @ weight @ reflectors[1])


def test_every_orthogonal_filter_of_two_taps_is_one_shift_and_a_matrix() -> None:
    """The first step of the lattice: H(z) = A + B z with H Hᵀ = I is (I - P + P z)(A + B), P the projector on B."""
    torch.manual_seed(0)
    c, weight = frames(1, 4, 2)[0], torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64)).Q
    a, b = (torch.eye(4, dtype=torch.float64) - c @ c.mT) @ weight, c @ c.mT @ weight
    found = torch.linalg.svd(b).U[:, :2]
    kernel = shifted_kernel(a + b, found[None], frames(1, 4, 0), 1)  # the right one does nothing
    torch.testing.assert_close(kernel[..., 1], a)
    torch.testing.assert_close(kernel[..., 2], b)


@pytest.mark.parametrize(("p", "q", "size", "dimensions"), [(4, 4, 5, 2), (4, 1, 5, 2), (1, 3, 3, 1), (2, 2, 1, 3)])
def test_the_shifts_make_a_kernel_of_that_size(p: int, q: int, size: int, dimensions: int) -> None:
    left, right = shifts_of(p, q, size, dimensions)
    weight = torch.randn(p, q, dtype=torch.float64)
    kernel = shifted_kernel(weight, frames(left, p, p // 2), frames(right, q, q // 2), dimensions)
    assert kernel.shape == (p, q, *(size,) * dimensions)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("taps", [1, 3])
def test_the_transpose_is_that_of_the_convolution(dimensions: int, stride: int, taps: int) -> None:
    kernel = torch.randn(3, 2, *(taps * stride,) * dimensions, dtype=torch.float64)
    x = torch.randn(2, 2, *(2 * stride,) * dimensions, dtype=torch.float64)
    y = circular(x, kernel, stride)
    other = torch.randn_like(y)
    torch.testing.assert_close((y * other).sum(), (x * circular_transpose(other, kernel, stride)).sum())


def test_a_strided_kernel_does_what_pixels_taken_for_channels_do() -> None:
    x, kernel = torch.randn(2, 3, 8, 12, dtype=torch.float64), torch.randn(5, 12, 3, 3, dtype=torch.float64)
    expected = circular(F.pixel_unshuffle(x, 2), kernel)
    torch.testing.assert_close(circular(x, spread_over_pixels(kernel, 2), stride=2), expected)
