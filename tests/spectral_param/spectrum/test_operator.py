from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import nn

from spectral_param import Fixed, image_sizes, register_svd_parametrization, singular_values, spectral_norm
from tests.spectral_param.functional.convolution.options import convolutions, true_values

MODES = ("zeros", "circular", "reflect", "replicate")


@settings(max_examples=60, deadline=None)
@given(convolutions(MODES))
def test_exact_values_are_those_of_the_operator(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    sigma, true = singular_values(conv, operator=image), true_values(conv, image)
    torch.testing.assert_close(sigma.detach(), true, rtol=0, atol=1e-10 * max(1.0, true[0].item()))
    assert spectral_norm(conv, operator=image).item() == pytest.approx(true[0].item(), rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(convolutions(MODES))
def test_without_exact_no_value_is_too_small(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    sigma, true = singular_values(conv, operator=image, exact=False), true_values(conv, image)
    assert sigma.shape == true.shape
    assert (sigma >= true - 1e-12).all()
    bound = spectral_norm(conv, operator=image, exact=False)
    assert true[0] <= bound
    assert bound <= 1.01 * sigma[0]  # and less, where the matrix is written out for the norm and not for all values


def test_a_bound_with_zeros_on_an_image_of_twelve_is_near() -> None:
    torch.manual_seed(0)
    for kernel in (3, 5):
        conv = nn.Conv2d(11, 11, kernel, padding="same", dtype=torch.float64)  # larger than is written out
        true = true_values(conv, (12, 12))[0]
        assert 1 <= (spectral_norm(conv, operator=(12, 12), exact=False) / true).item() <= 1.05


def test_a_registered_kernel_is_read_as_the_operator_too() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    register_svd_parametrization(conv, sigma=Fixed(), init="orthogonal")
    assert spectral_norm(conv).item() == pytest.approx(1.0)
    found = singular_values(conv, operator=(6, 6))
    assert found[0] > 1.3
    torch.testing.assert_close(found, true_values(conv.double(), (6, 6)).float(), rtol=1e-5, atol=1e-5)


def test_a_penalty_on_the_operator_has_a_gradient() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    for exact in (True, False):
        (gradient,) = torch.autograd.grad(spectral_norm(conv, operator=(5, 5), exact=exact), conv.weight)
        assert gradient.isfinite().all()
        assert gradient.norm() > 0


def test_lower_precision_around_it_changes_nothing() -> None:
    conv = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    expected = singular_values(conv, operator=(6, 6))
    with torch.autocast("cpu", torch.bfloat16):
        found = singular_values(conv, operator=(6, 6))
    assert torch.equal(found, expected)
    assert singular_values(conv.bfloat16(), operator=(6, 6)).dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "options", "match"),
    [
        (torch.ones(2, 2), {"operator": (4, 4)}, "module: expected a torch.nn.Module, got Tensor"),
        (nn.Linear(2, 2), {"operator": (4, 4)}, "operator: expected a convolution, got Linear"),
        (nn.Conv2d(2, 2, 3), {"operator": (4,)}, "operator: expected 2 positive sizes"),
        (nn.Conv2d(2, 2, 3), {"operator": (4, 0)}, "operator: expected 2 positive sizes"),
        (nn.Conv2d(2, 2, 3), {"operator": (4, 4.0)}, "operator: expected 2 positive sizes"),
        (nn.Conv2d(2, 2, 3), {"operator": 4}, "operator: expected an image's"),
        (nn.Conv2d(2, 2, 3), {"operator": (2, 2)}, "operator: expected an image that the kernel's windows fit"),
        (nn.Conv2d(2, 2, 3), {"operator": (4, 4), "tensor_name": "bias"}, "tensor_name: expected 'weight'"),
        (nn.Conv2d(64, 64, 3, padding=1), {"operator": (32, 32)}, "padding_mode='zeros'.*exact=False"),
        (
            nn.Conv2d(64, 64, 3, 2, 1, padding_mode="circular"),
            {"operator": (33, 33)},
            "padding_mode='circular'.*exact=False",
        ),
        (nn.Conv2d(2, 2, 5, padding=3, padding_mode="reflect"), {"operator": (3, 3)}, "operator: expected an image la"),
    ],
    ids=str,
)
def test_what_cannot_be_read_names_its_argument(module: Any, options: dict[str, object], match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        singular_values(module, **options)


def test_the_image_of_a_convolution_that_is_called_by_name() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(input=x)

    assert image_sizes(Named(), torch.randn(1, 3, 8, 6)) == {"conv.weight": (8, 6)}


def test_the_images_of_a_model_that_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    assert image_sizes(model, torch.randn(2, 3, 32, 16)) == {"0.weight": (32, 16), "2.weight": (16, 8)}
    assert model.training
    assert model[1].num_batches_tracked == 0
    assert not model[0]._forward_pre_hooks
