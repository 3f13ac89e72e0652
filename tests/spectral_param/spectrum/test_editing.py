import math

import pytest
import torch
from torch import nn

from spectral_param import (
    Band,
    Bounded,
    Fixed,
    Positive,
    Unconstrained,
    clip_singular_values_,
    register_svd_parametrization,
    renormalize_reflectors_,
    singular_values,
    spectral_margin,
    spectral_penalty,
    spectral_table,
    svd_parametrizations,
)
from tests.reference import relative


def layer_with(diagonal, **kwargs):
    layer = nn.Linear(len(diagonal), len(diagonal))
    layer.weight.data = torch.diag(torch.tensor(diagonal))
    return register_svd_parametrization(layer, **kwargs)


def test_clip_moves_only_what_is_outside():
    layer = layer_with([4.0, 2.0, 1.0, 0.25])
    [(_, p)] = svd_parametrizations(layer)
    before = p.sigma.detach().clone()
    assert clip_singular_values_(layer, min=0.5, max=3.0) is layer
    inside = (before >= 0.5) & (before <= 3.0)
    assert torch.equal(p.sigma[inside], before[inside])
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight), torch.tensor([3.0, 2.0, 1.0, 0.5]))


def test_clip_keeps_signs():
    layer = layer_with([2.0, 1.0])
    [(_, p)] = svd_parametrizations(layer)
    p.factors[1].data = torch.tensor([-2.0, 0.0])
    clip_singular_values_(layer, min=0.5, max=1.5)
    assert p.sigma.tolist() == [-1.5, 0.5]


def test_clip_within_a_band():
    layer = layer_with([1.09, 1.0, 0.92], sigma=Band(0.1))
    clip_singular_values_(layer, min=0.95, max=1.05)
    torch.testing.assert_close(singular_values(layer), torch.tensor([1.05, 1.0, 0.95]), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (2.0, 1.0), (1.5, 2.0), (math.nan, 1.0)])
def test_clip_that_cannot_be_met_changes_nothing(low, high):
    model = nn.Sequential(layer_with([4.0, 0.1]), layer_with([1.0, 1.0], sigma=Band(0.1)))
    before = [p.sigma.detach().clone() for _, p in svd_parametrizations(model)]
    with pytest.raises(ValueError, match="^min, max: "):
        clip_singular_values_(model, low, high)
    for (_, p), sigma in zip(svd_parametrizations(model), before, strict=True):
        assert torch.equal(p.sigma, sigma)


@pytest.mark.parametrize(
    ("bounds", "error", "message"),
    [
        ({"min": "weight", "max": 1}, TypeError, "min: expected a number, got 'weight'; no weight is named"),
        ({"max": "1"}, TypeError, "max: expected a number, got str"),
        ({"min": None}, TypeError, "min: expected a number, got NoneType"),
        ({}, ValueError, "min, max: expected a bound for singular values, got none"),
    ],
)
def test_bounds_that_are_none(bounds, error, message):
    with pytest.raises(error, match=f"^{message}"):
        clip_singular_values_(layer_with([4.0, 0.1]), **bounds)


@pytest.mark.parametrize("reading", [spectral_margin, spectral_penalty, spectral_table])
def test_a_center_that_is_no_number(reading):
    with pytest.raises(TypeError, match="^center: expected a number, got str"):
        reading(layer_with([4.0, 0.1]), center="weight")
    with pytest.raises(ValueError, match="^center: expected a finite number, got nan"):
        reading(layer_with([4.0, 0.1]), center=math.nan)


def test_clip_of_fixed_values():
    layer = layer_with([1.0, 1.0], sigma=Fixed())
    clip_singular_values_(layer, 0.5, 1.0)
    assert singular_values(layer).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="none of them in"):
        clip_singular_values_(layer, 0.1, 0.5)


def test_renormalizing_changes_lengths_alone():
    layer = register_svd_parametrization(nn.Linear(9, 7), reflectors=(7, 4), init="orthogonal")
    [(_, p)] = svd_parametrizations(layer)
    with torch.no_grad():
        p.factors[0].mul_(30)
        p.factors[2].mul_(1e-12)
    before = layer.weight.detach().clone()
    renormalize_reflectors_(layer)
    assert relative(layer.weight, before) < 1e-6
    for reflectors in (p.u, p.v):
        lengths = reflectors.norm(dim=0)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    once = [factor.clone() for factor in p.factors]
    renormalize_reflectors_(layer)
    assert all(torch.equal(a, b) for a, b in zip(p.factors, once, strict=True))  # so a resumed run goes on bit by bit


def test_penalty_is_the_sum_of_squares_and_differentiable():
    model = nn.Sequential(layer_with([3.0, 1.0]), layer_with([1.0, 0.5]))
    penalty = spectral_penalty(model, center=1.0)
    assert penalty.item() == pytest.approx(4.25)
    penalty.backward()
    gradients = [p.factors[1].grad for _, p in svd_parametrizations(model)]
    torch.testing.assert_close(gradients[0].sort().values, torch.tensor([0.0, 4.0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(gradients[1].sort().values, torch.tensor([-1.0, 0.0]), rtol=0, atol=1e-5)


def test_penalty_of_nothing_is_zero():
    with pytest.warns(UserWarning, match=r"^spectral_penalty: no weight is registered; dense=True takes plain ones\.$"):
        assert spectral_penalty(nn.Linear(2, 2)).item() == 0


def test_clipping_nothing_is_told_with_its_remedy():
    layer = nn.Linear(2, 2)
    with pytest.warns(UserWarning, match="^clip_singular_values_: no weight is registered; dense=True takes plain"):
        clip_singular_values_(layer, max=1.0)
    with pytest.warns(UserWarning, match=r"dense='head\.\*' matches no plain one"):
        clip_singular_values_(layer, max=1.0, dense="head.*")


@pytest.mark.parametrize("edit", [lambda m, **o: clip_singular_values_(m, max=1.0, **o), spectral_penalty])
def test_patterns_that_name_no_plain_weight_are_told_beside_registered_ones(edit):
    model = nn.Sequential(layer_with([2.0, 0.5]), nn.Linear(2, 2))
    with pytest.warns(UserWarning, match=r"dense='head\.\*' matches no plain weight"):
        edit(model, dense="head.*")
    edit(model, dense="1.*")


def test_a_number_that_is_none_stays_so():
    for sigma in (Positive(), Band(0.1), Bounded(2.0), Unconstrained()):
        layer = layer_with([1.0, 1.0], sigma=sigma)
        [(_, p)] = svd_parametrizations(layer)
        p.raw_sigma.data[0] = math.nan
        clip_singular_values_(layer, 0.95, 1.0)
        assert p.sigma.isnan().tolist() == [True, False]


def test_plain_weights_are_clipped_and_penalized_where_they_are_asked_for():
    model = nn.Sequential(layer_with([3.0, 1.0]), nn.Linear(2, 2), nn.Conv2d(2, 3, 2))
    model[1].weight.data = torch.diag(torch.tensor([4.0, 0.25]))
    kernel = torch.linalg.svdvals(model[2].weight.detach().flatten(1))
    assert spectral_penalty(model, dense="1.*").item() == pytest.approx(4 + 9 + 0.5625)
    penalty = spectral_penalty(model, dense=True)
    assert penalty.item() == pytest.approx(13.5625 + (kernel - 1).square().sum().item())
    penalty.backward()
    torch.testing.assert_close(model[1].weight.grad, torch.diag(torch.tensor([6.0, -1.5])))
    clip_singular_values_(model, 0.5, 2.0, dense=["1.*"])
    torch.testing.assert_close(singular_values(model[1]).detach(), torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(singular_values(model[2]).detach(), kernel)
    with pytest.raises(ValueError, match="min, max: expected 0 <= min <= max, got 2 and 1"):
        clip_singular_values_(model, 2, 1, dense=True)
