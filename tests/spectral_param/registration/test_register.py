import copy

import numpy as np
import pytest
import torch
from torch import nn

from spectral_param import (
    Band,
    Fixed,
    Unconstrained,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    svd_parametrizations,
)
from spectral_param.registration.injection import sole_holder
from tests.reference import relative, svd_product


def linear(p=6, q=5, **kwargs):
    return nn.Linear(q, p, **kwargs)


def only(model):
    [(_, parametrization)] = svd_parametrizations(model)
    return parametrization


@pytest.mark.parametrize(("p", "q"), [(1, 1), (1, 4), (4, 1), (6, 6), (7, 5), (5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_weight_stays_what_it_was(p, q, dtype):
    layer = linear(p, q, dtype=dtype)
    before = layer.weight.detach().clone()
    assert register_svd_parametrization(layer) is layer
    assert layer.weight.dtype == dtype
    assert relative(layer.weight, before) < (1e-14 if dtype == torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_weights_have_float32_factors(dtype):
    layer = linear(dtype=dtype)
    before = layer.weight.detach().clone()
    register_svd_parametrization(layer)
    assert layer.weight.dtype == dtype
    assert {f.dtype for f in only(layer).factors} == {torch.float32}
    torch.testing.assert_close(layer.weight, before)
    layer(torch.randn(3, 5, dtype=dtype)).sum().backward()
    assert all(f.grad.isfinite().all() for f in only(layer).factors)


@pytest.mark.parametrize(("reflectors", "pair"), [(None, (5, 5)), (2, (2, 2)), ((1, 4), (1, 4)), ((3, 0), (3, 0))])
@pytest.mark.parametrize("sigma", [Unconstrained(), Band(0.1), Fixed()])
def test_trained_numbers_are_those_of_the_paper(reflectors, pair, sigma):
    layer = register_svd_parametrization(
        linear(7, 5, bias=False), reflectors=reflectors, sigma=sigma, init="orthogonal"
    )
    m1, m2 = pair
    k = 0 if isinstance(sigma, Fixed) else 5
    count = m1 * 7 - m1 * (m1 - 1) // 2 + m2 * 5 - m2 * (m2 - 1) // 2 + k
    assert sum(p.numel() for p in layer.parameters() if p.requires_grad) == count
    assert only(layer).reflectors == pair


def test_weight_is_the_product_of_its_factors():
    layer = register_svd_parametrization(linear(7, 5, dtype=torch.float64), reflectors=(2, 4), init="orthogonal")
    p = only(layer)
    torch.testing.assert_close(layer.weight, svd_product(p.u, p.sigma, p.v), rtol=0, atol=1e-12)


def test_chunks_have_an_svd_each():
    lstm = nn.LSTM(3, 8)
    blocks = lstm.weight_hh_l0.detach().clone().view(4, 8, 8)
    register_svd_parametrization(lstm, "weight_hh_l0", chunks=4)
    torch.testing.assert_close(lstm.weight_hh_l0, blocks.view(32, 8), rtol=0, atol=1e-6)
    torch.testing.assert_close(singular_values(lstm, "weight_hh_l0"), torch.linalg.svdvals(blocks))


def test_orthogonal_start():
    layer = register_svd_parametrization(linear(6, 6), sigma=Band(0.1, center=0.5), init="orthogonal")
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight), torch.full((6,), 0.5))


def test_sigma_out_of_range_moves_inside_with_one_warning():
    layer = linear(4, 4)
    layer.weight.data = torch.diag(torch.tensor([3.0, 1.0, 0.95, 0.1]))
    with pytest.warns(UserWarning, match=r"Band.*: 2 of 4 σ .* moved by up to 1\.9") as caught:
        register_svd_parametrization(layer, sigma=Band(0.1))
    assert len(caught) == 1
    values = singular_values(layer)
    assert (values > 0.9).all()
    assert (values < 1.1).all()
    torch.testing.assert_close(values[1:3], torch.tensor([1.0, 0.95]))


def test_too_few_reflectors_warn_once():
    with pytest.warns(UserWarning, match=r"reflectors=\(1, 1\) of 5 .* changes by \d") as caught:
        register_svd_parametrization(linear(), reflectors=1)
    assert len(caught) == 1


def test_sigma_map_is_copied():
    band = Band(0.1)
    first, second = (register_svd_parametrization(linear(), sigma=band, init="orthogonal") for _ in range(2))
    only(first).sigma_map.radius = 0.2
    assert only(second).sigma_map.radius == band.radius == 0.1


def test_assignment_writes_into_the_same_factors():
    layer = register_svd_parametrization(linear())
    factors = only(layer).factors
    value = torch.randn(6, 5)
    layer.weight = value
    assert all(a is b for a, b in zip(only(layer).factors, factors, strict=True))
    torch.testing.assert_close(layer.weight, value, rtol=0, atol=1e-6)
    value.zero_()
    assert layer.weight.abs().max() > 0


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.ones(5, 6), ValueError),
        (torch.full((6, 5), torch.nan), ValueError),
        ([[1.0]], TypeError),
    ],
)
def test_assignment_of_the_wrong_thing_changes_nothing(value, error):
    layer = register_svd_parametrization(linear())
    before = layer.weight.detach().clone()
    with pytest.raises(error, match="weight: expected"):
        layer.weight = value
    assert torch.equal(layer.weight, before)


def test_removal_gives_the_plain_module_back():
    layer = linear()
    keys, kind = list(layer.state_dict()), type(layer)
    register_svd_parametrization(layer, init="orthogonal")
    weight = layer.weight.detach().clone()
    assert remove_svd_parametrization(layer) is layer
    assert type(layer) is kind
    assert list(layer.state_dict()) == keys
    assert [n for n, _ in layer.named_parameters()] == keys
    assert torch.equal(layer.weight, weight)
    assert layer.weight.requires_grad
    assert layer.weight.is_leaf


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_removal_without_gradients_still_gives_a_trainable_parameter(mode):
    layer = register_svd_parametrization(linear())
    with mode():
        remove_svd_parametrization(layer)
    assert isinstance(layer.weight, nn.Parameter)
    assert layer.weight.requires_grad
    layer(torch.ones(5)).sum().backward()


def test_removal_from_a_whole_model():
    model = nn.Sequential(linear(5, 5), nn.ReLU(), nn.Sequential(linear(5, 5)))
    for layer in (model[0], model[2][0]):
        register_svd_parametrization(layer)
    remove_svd_parametrization(model)
    assert list(svd_parametrizations(model)) == []
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.0.weight", "2.0.bias"]


def test_removal_of_one_of_two_weights():
    lstm = nn.LSTM(4, 4)
    names = [n for n, _ in lstm.named_parameters()]
    for name in ("weight_hh_l0", "weight_ih_l0"):
        register_svd_parametrization(lstm, name, chunks=4)
    remove_svd_parametrization(lstm, "weight_hh_l0")
    assert [n for n, _ in svd_parametrizations(lstm)] == ["weight_ih_l0"]
    remove_svd_parametrization(lstm, "weight_ih_l0")
    assert [n for n, _ in lstm.named_parameters()] == names


def test_removal_of_what_is_not_there():
    with pytest.raises(ValueError, match="^tensor_name: 'weight' has no SVD"):
        remove_svd_parametrization(linear(), "weight")
    with pytest.raises(ValueError, match="in Sequential; without it, all within are folded: 0.weight"):
        remove_svd_parametrization(nn.Sequential(registered()), "0.weight")
    with pytest.raises(ValueError, match="^leave_parametrized: expected True"):
        remove_svd_parametrization(register_svd_parametrization(linear()), leave_parametrized=False)


def test_qualified_names():
    model = nn.ModuleDict({"encoder": nn.Sequential(linear(), nn.LSTM(3, 4))})
    register_svd_parametrization(model["encoder"][0])
    register_svd_parametrization(model["encoder"][1], "weight_hh_l0", chunks=4)
    assert [n for n, _ in svd_parametrizations(model)] == ["encoder.0.weight", "encoder.1.weight_hh_l0"]


def with_buffer():
    module = nn.Module()
    module.register_buffer("weight", torch.ones(2, 2))
    return module


def with_parameter(parameter):
    module = nn.Module()
    module.weight = nn.Parameter(parameter, requires_grad=False)
    return module


def registered():
    return register_svd_parametrization(linear())


@pytest.mark.parametrize(
    ("make", "kwargs", "error", "message"),
    [
        (
            linear,
            {"tensor_name": "wieght"},
            ValueError,
            "tensor_name: .* has no parameter 'wieght'; it has weight, bias",
        ),
        (linear, {"tensor_name": "bias"}, ValueError, "tensor_name: expected a weight of two dimensions or more"),
        (linear, {"tensor_name": 3}, TypeError, "tensor_name: expected a string"),
        (lambda: "linear", {}, TypeError, "module: expected a torch.nn.Module"),
        (
            lambda: nn.Sequential(linear()),
            {},
            ValueError,
            r"no parameter 'weight'; it has none; give get_submodule\('0'\) of it, or the whole to register_all",
        ),
        (lambda: nn.Sequential(linear()), {"tensor_name": "0.weight"}, ValueError, r"give get_submodule\('0'\)"),
        (nn.Sequential, {}, ValueError, r"Sequential has no parameter 'weight'; it has none\.$"),
        (
            registered,
            {},
            ValueError,
            "tensor_name: 'weight' .* is parametrized already, by SVDParametrization; remove_svd_parametrization",
        ),
        (
            lambda: nn.utils.parametrizations.weight_norm(linear()),
            {},
            ValueError,
            r"is parametrized already, by _WeightNorm; .*parametrize.remove_parametrizations\(module, 'weight'\)",
        ),
        (with_buffer, {}, ValueError, "is a buffer"),
        (lambda: with_parameter(torch.ones(2, 2, dtype=torch.int64)), {}, TypeError, "real floating dtype"),
        (lambda: with_parameter(torch.ones(2, 2, dtype=torch.complex64)), {}, TypeError, "real floating dtype"),
        (lambda: with_parameter(torch.full((2, 2), torch.nan)), {}, ValueError, "weight: expected finite"),
        (lambda: with_parameter(torch.full((2, 2), torch.inf)), {}, ValueError, "weight: expected finite"),
        (lambda: with_parameter(torch.ones(0, 2)), {}, ValueError, "with entries"),
        (lambda: nn.LazyLinear(3), {}, ValueError, "has no shape before the first forward"),
        (linear, {"reflectors": 0}, ValueError, "reflectors: expected"),
        (linear, {"reflectors": -1}, ValueError, "reflectors: expected"),
        (linear, {"reflectors": 6}, ValueError, "reflectors: expected a number from 1 to 5"),
        (linear, {"reflectors": (0, 0)}, ValueError, "reflectors: expected"),
        (linear, {"reflectors": (1, 2, 3)}, ValueError, "reflectors: expected"),
        (linear, {"reflectors": 2.0}, TypeError, "reflectors: expected"),
        (linear, {"reflectors": True}, TypeError, "reflectors: expected"),
        (linear, {"sigma": 1.0}, TypeError, r"sigma: expected a σ map or None, for instance Band\(0.1\), got float"),
        (linear, {"sigma": Band}, TypeError, "sigma: expected a σ map or None, .* got the class Band"),
        (linear, {"chunks": 4}, ValueError, "chunks: expected a divisor of 6"),
        (linear, {"chunks": 0}, ValueError, "chunks: expected"),
        (linear, {"chunks": 1.5}, TypeError, "chunks: expected"),
        (linear, {"init": "random"}, ValueError, "init: expected 'weight' or 'orthogonal'"),
    ],
)
def test_wrong_input_is_named_and_changes_nothing(make, kwargs, error, message):
    module = make()
    if isinstance(module, nn.Module):
        kind, keys = type(module), list(module.state_dict())
        values = [copy.deepcopy(v) for v in module.state_dict().values()]
    with pytest.raises(error, match=message):
        register_svd_parametrization(module, **kwargs)
    if isinstance(module, nn.Module):
        assert type(module) is kind
        assert list(module.state_dict()) == keys
        for now, before in zip(module.state_dict().values(), values, strict=True):
            if not isinstance(now, nn.UninitializedParameter):
                torch.testing.assert_close(now, before, equal_nan=True)


def test_training_keeps_the_band_and_the_orthogonality():
    """200 steps of AdamW with weight decay 0.1 (a decay on reflectors only shortens them)."""
    layer = register_svd_parametrization(linear(32, 32), sigma=Band(0.05), init="orthogonal")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2, weight_decay=0.1)
    x, y = torch.randn(64, 32), torch.randn(64, 32)
    for _ in range(200):
        optimizer.zero_grad()
        (layer(x) - y).square().mean().backward()
        optimizer.step()
    values = torch.linalg.svdvals(layer.weight)
    assert (values >= 0.95 - 1e-5).all()
    assert (values <= 1.05 + 1e-5).all()
    p = only(layer)
    from spectral_param.functional import householder_product

    for reflectors in (p.u, p.v):
        u = householder_product(reflectors)
        assert (u.mT @ u - torch.eye(32)).abs().max() <= 1e-5


def test_reset_keeps_sigma_legal_and_starts_as_registration_did():
    drawn = register_svd_parametrization(linear(), sigma=Band(0.1), init="orthogonal")
    before = drawn.weight.detach().clone()
    drawn.reset_parameters()
    torch.testing.assert_close(singular_values(drawn), torch.ones(5))
    assert (drawn.weight - before).abs().max() > 0.1
    fitted = register_svd_parametrization(linear(100, 50))
    fitted.weight = torch.zeros(100, 50)
    fitted.bias.data.zero_()
    fitted.reset_parameters()
    assert 0.1 < fitted.weight.abs().max() <= 1 / 50**0.5 + 1e-6
    assert fitted.bias.abs().max() > 0


def test_removal_searches_all_objects_for_no_factor_that_nobody_else_holds(monkeypatch):
    searches = []
    search = sole_holder.gc.get_referrers
    monkeypatch.setattr(sole_holder.gc, "get_referrers", lambda *objects: searches.append(objects) or search(*objects))
    module = register_svd_parametrization(nn.Linear(4, 4))
    remove_svd_parametrization(module)
    assert not searches
    register_svd_parametrization(module)
    optimizer = torch.optim.SGD(module.parameters())
    remove_svd_parametrization(module)
    assert len(searches[0]) == 3
    assert optimizer.param_groups


def test_whole_numbers_of_any_kind_are_counts():
    layer = register_svd_parametrization(
        nn.Linear(8, 8), reflectors=np.int64(3), chunks=np.int32(2), sigma=Band(np.float32(0.1)), init="orthogonal"
    )
    parametrization = only(layer)
    assert (parametrization.reflectors, parametrization.chunks) == ((3, 3), 2)
    assert all(type(count) is int for count in (*parametrization.reflectors, parametrization.chunks))
    report = register_all(nn.Sequential(nn.Linear(8, 4)), reflectors=np.int64(6), init="orthogonal")
    assert report.taken["0.weight"].reflectors == (4, 4)
    for wrong in (True, 2.0, "3"):
        with pytest.raises(TypeError, match="reflectors: expected None, an integer or a pair of integers"):
            register_svd_parametrization(nn.Linear(8, 8), reflectors=wrong)


@pytest.mark.parametrize("register", [register_svd_parametrization, register_all])
@pytest.mark.parametrize("train", ["all", "sigma", "reflectors"])
def test_factors_made_in_inference_mode_are_trained(register, train):
    layer = nn.Linear(4, 4)
    with torch.inference_mode():
        register(layer, train=train)
        layer.weight = torch.eye(4) * 2
        layer.reset_parameters()
    layer(torch.ones(2, 4)).sum().backward()
    for name, factor in layer.parametrizations.named_parameters():
        assert not factor.is_inference()
        assert (factor.grad is not None) == factor.requires_grad, name


def test_a_layer_made_in_inference_mode_has_factors_that_are_trained():
    with torch.inference_mode():
        layer = register_svd_parametrization(nn.Linear(4, 4, bias=False))
    layer(torch.ones(2, 4)).sum().backward()
    assert all(p.grad is not None and not p.is_inference() for p in layer.parameters())
