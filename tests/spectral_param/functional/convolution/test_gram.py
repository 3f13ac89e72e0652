import pytest
import torch
from hypothesis import given, settings
from torch import nn

from spectral_param.functional.convolution.frequencies import circular_singular_values, symbols
from spectral_param.functional.convolution.geometry import geometry_of
from spectral_param.functional.convolution.gram import bound_at, bound_everywhere, bound_of
from spectral_param.functional.convolution.padding import circle, stretch
from tests.spectral_param.functional.convolution.options import convolutions, true_values


@settings(max_examples=60, deadline=None)
@given(convolutions(("zeros", "zeros", "circular", "reflect", "replicate")))
def test_no_image_is_stretched_beyond_the_bounds(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    geometry = geometry_of(conv)
    blocks, true = geometry.blocks(conv.weight.detach()), true_values(conv, image)[0]
    counts, stretched = circle(geometry, geometry.sides(image))
    on_circle = circular_singular_values(blocks, geometry, counts).amax()
    bound = bound_at(blocks, geometry, counts)
    assert true <= bound * stretched
    assert on_circle <= bound <= 1.01 * on_circle
    assert true <= bound_everywhere(blocks, geometry) * stretch(geometry)


@settings(max_examples=40, deadline=None)
@given(convolutions(("circular",), circles=True))
def test_the_bound_for_every_image_is_within_a_twentieth_of_the_supremum(drawn: tuple[nn.Module, object]) -> None:
    conv, _ = drawn
    geometry = geometry_of(conv)
    blocks = geometry.blocks(conv.weight.detach())
    fine = [240, 48, 24][len(geometry.kernel) - 1]
    counts = [1 if kernel == 1 else fine for kernel in geometry.kernel]
    supremum = torch.linalg.svdvals(symbols(blocks, geometry, counts)).amax()  # but for what lies between
    between = 1 if len(geometry.kernel) < 3 else 1.05
    assert supremum * (1 - 1e-12) <= bound_everywhere(blocks, geometry) <= 1.05 * between * supremum


@pytest.mark.parametrize("channels", [1, 3, 64, 600])
def test_a_convolution_that_keeps_lengths(channels: int) -> None:
    conv = nn.Conv1d(channels, channels, 3, padding=1)
    nn.init.dirac_(conv.weight)
    geometry = geometry_of(conv)
    assert 1 <= bound_at(geometry.blocks(conv.weight), geometry, (8,)).item() <= 1.01
    assert 1 <= bound_everywhere(geometry.blocks(conv.weight), geometry).item() <= 1.05


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_sizes_near_the_ends_of_float32(size: float) -> None:
    conv = nn.Conv2d(3, 5, 3)
    geometry, weight = geometry_of(conv), conv.weight.detach().clone()
    one = bound_everywhere(geometry.blocks(weight), geometry)
    assert bound_everywhere(geometry.blocks(weight * size), geometry).item() == pytest.approx(
        one.item() * size, rel=1e-5
    )


@pytest.mark.parametrize("shape", [(1, 3, 5), (2, 40, 8), (3, 9, 9), (1, 600, 550)], ids=str)
def test_matrices_that_are_written_out(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape).requires_grad_()
    bound, exact = bound_of(matrices), torch.linalg.matrix_norm(matrices.double(), 2).amax()
    assert exact <= bound <= 1.01 * exact
    (gradient,) = torch.autograd.grad(bound, matrices)
    assert (gradient * matrices).sum().item() == pytest.approx(bound.item(), rel=1e-5)


def test_kernels_that_are_zero_or_no_numbers() -> None:
    conv = nn.Conv2d(3, 5, 3)
    geometry = geometry_of(conv)
    assert bound_everywhere(torch.zeros(1, 5, 3, 3, 3), geometry) == 0
    assert bound_everywhere(torch.full((1, 5, 3, 3, 3), torch.nan), geometry).isnan()
    assert not bound_everywhere(torch.full((1, 5, 3, 3, 3), torch.inf), geometry).isfinite()


def test_the_gradient_is_that_of_the_greatest_singular_value() -> None:
    conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", dtype=torch.float64)
    geometry = geometry_of(conv)
    bound = bound_at(geometry.blocks(conv.weight), geometry, (8, 8))
    exact = circular_singular_values(geometry.blocks(conv.weight), geometry, (8, 8)).amax()
    (found,) = torch.autograd.grad(bound, conv.weight)
    (expected,) = torch.autograd.grad(exact, conv.weight)
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), 0) > 0.95
    assert (found * conv.weight).sum().item() == pytest.approx(bound.item(), rel=1e-9)  # it is homogeneous
