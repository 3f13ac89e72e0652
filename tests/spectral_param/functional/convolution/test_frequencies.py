import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spectral_param.functional.convolution.frequencies import circular_singular_values, symbols, taps_of, weights
from spectral_param.functional.convolution.geometry import geometry_of
from spectral_param.functional.convolution.padding import circle, wraps_around
from tests.spectral_param.functional.convolution.options import convolutions, jacobian, true_values


@settings(max_examples=60, deadline=None)
@given(convolutions(("circular",), circles=True))
def test_on_a_circle_they_are_those_of_the_matrix(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    geometry = geometry_of(conv)
    sides = geometry.sides(image)
    assert wraps_around(geometry, sides)
    counts, stretch = circle(geometry, sides)
    sigma = circular_singular_values(geometry.blocks(conv.weight), geometry, counts).sort(descending=True).values
    true = true_values(conv, image)
    assert stretch == 1
    torch.testing.assert_close(sigma.detach(), true, rtol=0, atol=1e-10 * true[0].item())


@settings(max_examples=60, deadline=None)
@given(convolutions(("zeros", "zeros", "circular", "reflect", "replicate")))
def test_any_other_padding_lies_below_a_circle_value_by_value(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    geometry = geometry_of(conv)
    counts, stretch = circle(geometry, geometry.sides(image))
    sigma = circular_singular_values(geometry.blocks(conv.weight.detach()), geometry, counts)
    true = true_values(conv, image)
    assert (true <= stretch * sigma.sort(descending=True).values[: len(true)] + 1e-12).all()


@settings(max_examples=30, deadline=None)
@given(convolutions(("zeros",)))
def test_taps_come_back_from_their_symbols(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    geometry = geometry_of(conv)
    blocks, counts = geometry.blocks(conv.weight.detach()), circle(geometry, geometry.sides(image))[0]
    torch.testing.assert_close(taps_of(symbols(blocks, geometry, counts), geometry, counts), blocks)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=3))
def test_the_frequencies_that_are_computed_stand_for_all(sides: list[tuple[int, bool]]) -> None:
    counts, twists = zip(*sides, strict=True)
    assert weights(counts, twists).sum() == torch.Size(counts).numel()


@settings(max_examples=60, deadline=None)
@given(convolutions(("zeros", "zeros", "reflect", "replicate")), st.lists(st.booleans(), min_size=3, max_size=3))
def test_twisted_circles_bound_value_by_value_too(drawn: tuple[nn.Module, tuple[int, ...]], twists: list[bool]) -> None:
    conv, image = drawn
    geometry = geometry_of(conv)
    counts, stretch = circle(geometry, geometry.sides(image))
    blocks = geometry.blocks(conv.weight.detach())
    sigma = circular_singular_values(blocks, geometry, counts, twists[: len(counts)])
    true = true_values(conv, image)
    assert len(sigma) == len(circular_singular_values(blocks, geometry, counts))
    assert (true <= stretch * sigma.sort(descending=True).values[: len(true)] + 1e-12).all()


def test_a_twisted_circle_is_a_matrix_with_a_change_of_sign() -> None:
    conv = nn.Conv1d(1, 1, 3)
    geometry, blocks = geometry_of(conv), torch.tensor([[[[1.0, 2.0, 4.0]]]], dtype=torch.float64)
    matrix = torch.tensor([[1, 2, 4, 0], [0, 1, 2, 4], [-4, 0, 1, 2], [-2, -4, 0, 1]], dtype=torch.float64)
    sigma = circular_singular_values(blocks, geometry, [4], [True]).sort(descending=True).values
    torch.testing.assert_close(sigma, torch.linalg.svdvals(matrix))


def test_the_sides_of_an_image_that_a_transposed_convolution_writes() -> None:
    conv = nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1, output_padding=1, dtype=torch.float64)
    sides = geometry_of(conv).sides((4, 5))
    assert jacobian(conv, (4, 5)).shape == (3 * sides[0].n * sides[1].n, 2 * 4 * 5)


def test_gradients_through_the_frequencies() -> None:
    conv = nn.Conv2d(2, 2, 3, stride=(1, 2), padding=1, padding_mode="circular", dtype=torch.float64)
    geometry = geometry_of(conv)

    def reading(weight: torch.Tensor) -> torch.Tensor:
        return circular_singular_values(geometry.blocks(weight), geometry, (5, 3)).square().sum().sqrt()

    assert torch.autograd.gradcheck(reading, conv.weight)
