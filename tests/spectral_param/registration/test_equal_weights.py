import copy

import pytest
import torch
from torch import nn

from spectral_param import Band, register_all, register_svd_parametrization, svd_parametrizations
from spectral_param.registration import equal_weights


def layers():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(40, 30) for _ in range(3)),
        nn.Linear(30, 40),
        nn.LSTM(40, 30),
        nn.Conv2d(10, 30, 2, bias=False),
        nn.Linear(40, 30).double(),
    )


@pytest.fixture
def calls(monkeypatch):
    made = []
    fit = equal_weights.fit

    def counted(blocks, m1, m2):
        made.append(tuple(blocks.shape))
        return fit(blocks, m1, m2)

    monkeypatch.setattr(equal_weights, "fit", counted)
    return made


@pytest.mark.filterwarnings("ignore:.*turn U and V too little", "ignore:.*too few reflectors")
@pytest.mark.parametrize("reflectors", [None, 7, (3, 30), 1])
def test_equal_weights_are_fitted_in_one_call_as_by_themselves(calls, reflectors):
    model = layers()
    alone = copy.deepcopy(model)
    register_all(model, reflectors=reflectors)
    assert calls == [(3 + 4 + 1, 30, 40)]  # of nn.Linear, the gates of weight_ih, the convolution; not in float64
    for name, one in svd_parametrizations(model):
        owner, _, tensor_name = name.rpartition(".")
        module = alone.get_submodule(owner)
        register_svd_parametrization(module, tensor_name, chunks=one.chunks, reflectors=one.reflectors)
        torch.testing.assert_close(getattr(model.get_submodule(owner), tensor_name), getattr(module, tensor_name))


def test_a_call_has_so_many_weights_and_no_more(calls, monkeypatch):
    monkeypatch.setattr(equal_weights, "_MOST", 5 * 64)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(12)), *(nn.Linear(16, 16) for _ in range(2)))
    before = [layer.weight.detach().clone() for layer in model]
    register_all(model)
    assert calls == [(5, 8, 8), (5, 8, 8), (2, 8, 8)]  # two of 16×16 are beyond it
    for layer, weight in zip(model, before, strict=True):
        torch.testing.assert_close(layer.weight, weight, atol=1e-6, rtol=0)


@pytest.mark.parametrize("which", [0, 2])
def test_one_that_is_not_finite_is_named(which):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    with torch.no_grad():
        model[which].weight[0, 0] = torch.nan
    weights = [layer.weight for layer in model]
    with pytest.raises(ValueError, match=rf"{which}\.weight: weight: expected finite values"):
        register_all(model)
    assert all(layer.weight is weight for layer, weight in zip(model, weights, strict=True))


def test_each_is_said_to_change_by_itself():
    model = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(3)))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(6))
    with pytest.warns(UserWarning, match=r"1\.weight, 2\.weight: σ outside the range"):
        report = register_all(model, sigma=Band(0.1))
    assert report.changed["0.weight"] < 1e-6 < report.changed["1.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_within_inference_mode_factors_are_to_be_trained(dtype):
    with torch.inference_mode():
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))).to(dtype)
        register_all(model)
    assert not any(factor.is_inference() for _, one in svd_parametrizations(model) for factor in one.factors)
    model[0].weight.square().sum().backward()


def test_frozen_bases_and_weights_drawn_anew_are_by_themselves(calls):
    register_all(layers(), base="frozen", reflectors=2)
    register_all(layers(), init="orthogonal")
    register_all(layers().to("meta"))
    assert calls == []
