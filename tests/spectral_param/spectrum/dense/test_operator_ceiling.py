import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from spectral_param import SpectralCap, image_sizes, spectral_norm
from spectral_param.functional.convolution.geometry import geometry_of
from spectral_param.spectrum.dense import operator_ceiling
from spectral_param.spectrum.dense.operator_ceiling import OperatorCeiling
from tests.spectral_param.functional.convolution.options import convolutions, true_values

MODES = ("zeros", "circular", "reflect", "replicate")


@settings(max_examples=60, deadline=None)
@given(convolutions(MODES), st.sampled_from([0.1, 0.5, 0.99, 1.5]))
def test_no_image_is_stretched_beyond_the_cap(drawn: tuple[nn.Module, tuple[int, ...]], share: float) -> None:
    conv, image = drawn
    true = true_values(conv, image)[0].item()
    assume(true > 0)
    cap = share * true
    before = conv.weight.detach().clone()
    changed = OperatorCeiling(geometry_of(conv), image, cap).hold_(conv.weight)
    assert true_values(conv, image)[0].item() <= 1.01 * cap * (1 + 1e-9)
    assert changed == (not torch.equal(before, conv.weight))
    if share < 0.99:
        assert changed


@settings(max_examples=30, deadline=None)
@given(convolutions(("circular",), circles=True))
def test_on_a_circle_the_cap_is_reached(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    cap = 0.7 * true_values(conv, image)[0].item()
    ceiling = OperatorCeiling(geometry_of(conv), image, cap)
    assume(all(n * s == side for n, s, side in zip(ceiling.counts, conv.stride, image, strict=True)))  # no tap folds
    assert ceiling.hold_(conv.weight)
    assert 0.8 * cap <= true_values(conv, image)[0].item() <= 1.01 * cap


def test_a_kernel_below_the_cap_stays_bit_by_bit_and_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1)
    ceiling = OperatorCeiling(geometry_of(conv), (8, 8), 10.0)
    before = conv.weight.detach().clone()
    assert not ceiling.hold_(conv.weight)
    monkeypatch.setattr(operator_ceiling, "symbols", None)
    assert not ceiling.hold_(conv.weight)
    assert torch.equal(conv.weight, before)


def test_a_kernel_that_cannot_be_cut_back_in_time_is_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_ceiling, "_TURNS", 1)
    conv = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    assert OperatorCeiling(geometry_of(conv), (8, 8), 0.5).hold_(conv.weight)
    assert 0.49 <= spectral_norm(conv, operator=(8, 8)).item() <= 0.505


def test_what_is_not_finite_stays() -> None:
    conv = nn.Conv2d(2, 2, 3)
    conv.weight.data[0, 0, 0, 0] = torch.nan
    assert not OperatorCeiling(geometry_of(conv), (8, 8), 0.5).hold_(conv.weight)


def test_bfloat16_is_below_the_edge_as_it_is_stored() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular").bfloat16()
    assert OperatorCeiling(geometry_of(conv), (8, 8), 0.5).hold_(conv.weight)
    assert spectral_norm(conv, operator=(8, 8)).item() <= 0.505 * (1 + 1e-6)


def test_a_network_trains_below_its_cap() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    images = image_sizes(model, torch.randn(1, 3, 12, 12))
    SpectralCap(model, 1.0, operator=images).attach(optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        (-model(torch.randn(4, 3, 12, 12)).square().mean()).backward()
        optimizer.step()
        for name, image in images.items():
            assert spectral_norm(model.get_submodule(name.removesuffix(".weight")), operator=image).item() <= 1.01


@pytest.mark.parametrize(
    ("operator", "error", "match"),
    [
        ((8,), ValueError, "operator: expected 2 positive sizes.*'0.weight'"),
        ((1, 1), ValueError, "operator: expected an image that the kernel's windows fit.*'0.weight'"),
        ((8, 0), ValueError, "operator: expected positive sizes"),
        ("8", TypeError, "operator: expected an image's"),
        ({"0.*": 8}, TypeError, "operator: expected an image's"),
        ({0: (8, 8)}, TypeError, "operator: expected an image's"),
        ({"1.*": (8, 8)}, ValueError, "operator: expected patterns of convolutions' weights, '1.\\*' matches none"),
    ],
    ids=str,
)
def test_images_that_do_not_suit_are_refused(operator: object, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        SpectralCap(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Linear(2, 2)), 1.0, operator=operator)
