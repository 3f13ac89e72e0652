import torch
from hypothesis import given, settings
from torch import nn

from spectral_param.functional.convolution.geometry import geometry_of
from spectral_param.functional.convolution.power import power_step
from spectral_param.functional.convolution.written_out import adjoint, convolve, entries, written_out
from tests.spectral_param.functional.convolution.options import convolutions, jacobian

MODES = ("zeros", "circular", "reflect", "replicate")


@settings(max_examples=50, deadline=None)
@given(convolutions(MODES))
def test_the_matrices_of_the_groups_have_the_values_of_the_whole(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    geometry = geometry_of(conv)
    matrices = written_out(conv.weight.detach(), geometry, image)
    assert matrices.numel() == entries(geometry.blocks(conv.weight), geometry.sides(image))
    sigma = torch.linalg.svdvals(matrices).flatten().sort(descending=True).values
    torch.testing.assert_close(sigma, torch.linalg.svdvals(jacobian(conv, image)), rtol=0, atol=1e-10)


@settings(max_examples=30, deadline=None)
@given(convolutions(MODES))
def test_what_is_convolved_is_what_the_module_makes(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    images = torch.randn(2, conv.in_channels, *image, dtype=torch.float64)
    bias = 0 if conv.bias is None else conv.bias.reshape(-1, *(1 for _ in image))
    torch.testing.assert_close(convolve(images, conv.weight, geometry_of(conv)) + bias, conv(images))


@settings(max_examples=60, deadline=None)
@given(convolutions(MODES))
def test_the_adjoint_is_the_transpose(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    geometry, weight = geometry_of(conv), conv.weight.detach()
    x = torch.randn(2, conv.in_channels, *image, dtype=torch.float64)
    made = convolve(x, weight, geometry)
    y = torch.randn_like(made)
    back = adjoint(y, weight, geometry, image)
    assert back.shape == x.shape
    torch.testing.assert_close((made * y).sum(), (x * back).sum())


def test_the_adjoint_where_more_is_padded_behind_than_before() -> None:
    conv = nn.Conv2d(2, 3, (4, 2), padding="same", dtype=torch.float64)
    geometry, x = geometry_of(conv), torch.randn(1, 2, 5, 6, dtype=torch.float64)
    made = convolve(x, conv.weight, geometry)
    back = adjoint(made, conv.weight, geometry, (5, 6))
    torch.testing.assert_close(made.square().sum(), (x * back).sum())


@settings(max_examples=20, deadline=None)
@given(convolutions(MODES))
def test_a_power_iteration_comes_near_from_below(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    x = torch.randn(1, conv.in_channels, *image, dtype=torch.float64)
    for _ in range(200):
        norm, x = power_step(conv.weight, geometry_of(conv), x)
    true = torch.linalg.svdvals(jacobian(conv, image))[0]
    assert 0.97 * true <= norm <= true * (1 + 1e-12)


def test_a_zero_kernel_keeps_its_image() -> None:
    conv, image = nn.Conv1d(1, 1, 3), torch.ones(1, 1, 4)
    norm, after = power_step(torch.zeros(1, 1, 3), geometry_of(conv), image)
    assert norm == 0
    assert torch.equal(after, image / 2)
