"""Whatever the shape, the scale and the map: W's singular values are |σ|, and lengths and signs of reflectors say
nothing."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spectral_param import Band, Interval, Positive, Unconstrained, register_svd_parametrization, svd_parametrizations
from tests.reference import relative

sizes = st.integers(1, 40)
maps = st.sampled_from([Unconstrained(), Band(0.1), Positive(), Interval(-2.0, 0.5)])


@st.composite
def layers(draw):
    p, q = draw(sizes), draw(sizes)
    k = min(p, q)
    pair = (draw(st.integers(0, k)), draw(st.integers(0, k)))
    torch.manual_seed(draw(st.integers(0, 2**31)))
    layer = nn.Linear(q, p, bias=False, dtype=draw(st.sampled_from([torch.float32, torch.float64])))
    reflectors = pair if any(pair) else None
    register_svd_parametrization(layer, reflectors=reflectors, sigma=draw(maps), init="orthogonal")
    [(_, parametrization)] = svd_parametrizations(layer)
    with torch.no_grad():
        for factor in parametrization.factors:
            factor.add_(torch.randn_like(factor))
    return layer, parametrization


@settings(max_examples=80, deadline=None)
@given(layers(), st.integers(-15, 15), st.booleans())
def test_weight_and_factors(made, exponent, flip):
    layer, parametrization = made
    tolerance = 1e-12 if layer.weight.dtype == torch.float64 else 1e-5
    values = torch.linalg.svdvals(layer.weight.detach().double())
    sigma = parametrization.sigma.detach().abs().double().sort(descending=True).values
    assert (values - sigma).abs().max() <= tolerance * (1 + sigma.max())

    before = layer.weight.detach().clone()
    places = (parametrization.layout.places[0], parametrization.layout.places[2])
    with torch.no_grad():
        for place in places:
            if place >= 0:
                parametrization.factors[place].mul_((-1 if flip else 1) * 10.0**exponent)
    assert relative(layer.weight, before) <= tolerance

    layer.weight.square().sum().sin().backward()
    assert all(f.grad.isfinite().all() for f in parametrization.factors)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.integers(-30, 30), st.integers(0, 2**31))
def test_any_weight_is_met(p, q, exponent, seed):
    torch.manual_seed(seed)
    layer = nn.Linear(q, p)
    weight = torch.randn(p, q) * 10.0**exponent
    layer.weight.data = weight.clone()
    register_svd_parametrization(layer)
    assert relative(layer.weight, weight) < 1e-6
