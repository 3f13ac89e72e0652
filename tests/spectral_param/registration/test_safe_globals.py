"""Whole models through torch.save and torch.load(weights_only=True)."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from spectral_param import (
    Band,
    Bounded,
    Fixed,
    Interval,
    Positive,
    register_all,
    register_svd_parametrization,
    safe_globals,
    svd_parametrizations,
)
from spectral_param.nn import Residual, SpectralRNN, SVDLinear


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.lstm = nn.LSTM(4, 4)
        self.linear = nn.Linear(4, 3)
        self.attention = nn.MultiheadAttention(4, 2)
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        y, _ = self.lstm(self.conv(x).flatten(2).permute(2, 0, 1))
        return self.linear(self.attention(y, y, y)[0]) @ self.weight


OWN = [Classifier, nn.Conv2d, nn.LSTM, nn.Linear, nn.MultiheadAttention, NonDynamicallyQuantizableLinear]


def reloaded(model, *classes):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([*safe_globals(), *classes]):
        return torch.load(file, weights_only=True)


def test_a_whole_model_loads_under_weights_only():
    model, x = Classifier(), torch.randn(2, 2, 5, 5)
    register_all(model)
    twin = reloaded(model, *OWN)
    assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
    assert torch.equal(twin(x), model(x))
    twin(x).sum().backward()
    assert all(p.grad is not None for name, p in twin.named_parameters())
    assert list(twin.state_dict()) == list(model.state_dict())


def test_without_the_list_it_is_refused():
    file = io.BytesIO()
    torch.save(register_svd_parametrization(nn.Linear(2, 2)), file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Linear]), pytest.raises(pickle.UnpicklingError, match="Unsupported"):
        torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "sigma", [None, Band(0.1), Band(torch.full((3,), 0.1)), Fixed(), Bounded(2.0), Interval(0.5, 2.0), Positive()]
)
def test_every_sigma_map(sigma):
    layer = register_svd_parametrization(nn.Linear(3, 3), sigma=sigma, init="orthogonal", reflectors=2)
    assert torch.equal(reloaded(layer, nn.Linear).weight, layer.weight)


def test_frozen_factors_that_were_kept():
    layer = register_svd_parametrization(nn.Linear(3, 3), train="sigma")
    layer(torch.ones(1, 3))
    assert torch.equal(reloaded(layer, nn.Linear).weight, layer.weight)


@pytest.mark.parametrize(
    ("model", "classes"),
    [
        (SpectralRNN(2, 4, reflectors=2), [SpectralRNN]),
        (SVDLinear(4, 3), [SVDLinear]),
        (Residual(register_svd_parametrization(nn.Linear(4, 4))), [Residual, nn.Linear]),
    ],
)
def test_our_own_layers(model, classes):
    twin = reloaded(model, *classes)
    for (_, here), (_, there) in zip(svd_parametrizations(model), svd_parametrizations(twin), strict=True):
        assert torch.equal(here.sigma, there.sigma)


class Slotted(nn.Linear):
    __slots__ = ("extra",)


class Parent(nn.Linear):
    """Is held by what it holds."""

    def __init__(self):
        super().__init__(3, 3)
        self.children_of = {"me": [self]}


@pytest.mark.parametrize("build", [lambda: Slotted(3, 3), Parent])
def test_copies_and_pickles_of_unusual_modules(build):
    layer = register_svd_parametrization(build())
    for twin in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert type(twin) is type(layer)
        assert torch.equal(twin.weight, layer.weight)
        assert "_becomes" not in vars(twin)
    if isinstance(layer, Parent):
        twin = reloaded(layer, Parent)
        assert twin.children_of["me"][0] is twin
