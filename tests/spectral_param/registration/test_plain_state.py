import copy
import io

import pytest
import torch
from torch import nn

from spectral_param import (
    Bounded,
    load_plain_state_dict,
    plain_state_dict,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
)


class Own(nn.Module):
    """Parameters and buffers of its own, a child, a module in two places, a tied weight, running statistics."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(2))
        self.linear = nn.Linear(3, 3)
        self.again = self.linear
        self.lstm = nn.LSTM(3, 3, bidirectional=True)
        self.attention = nn.MultiheadAttention(4, 2, bias=False)
        self.conv = nn.ConvTranspose2d(2, 4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


def test_keys_their_order_and_values_are_those_of_the_plain_model():
    model = Own()
    before = model.state_dict()
    register_all(model)
    state = plain_state_dict(model)
    assert list(state) == list(before)
    assert state._metadata == before._metadata
    folded = remove_svd_parametrization(copy.deepcopy(model)).state_dict()
    for key, value in state.items():
        torch.testing.assert_close(value, before[key], rtol=1e-4, atol=1e-5)
        assert torch.equal(value, folded[key])
        assert not value.requires_grad
    assert Own().load_state_dict(state).missing_keys == []


def test_what_is_shared_is_one_tensor_and_nothing_of_the_model_changes():
    model = Own()
    register_all(model)
    parameters = {name: (id(p), p.detach().clone()) for name, p in model.named_parameters()}
    state = plain_state_dict(model)
    assert state["linear.weight"] is state["again.weight"]
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr() == model.head.weight.data_ptr()
    for name, parameter in model.named_parameters():
        assert parameters[name][0] == id(parameter)
        assert torch.equal(parameters[name][1], parameter)


def test_weights_stand_in_memory_as_plain_ones_do():
    model = nn.Sequential(nn.Linear(4, 2), nn.ConvTranspose2d(2, 4, 3), nn.Conv2d(2, 4, 3))
    model[2].to(memory_format=torch.channels_last)
    before = {key: value.stride() for key, value in model.state_dict().items()}
    register_all(model)
    assert {key: value.stride() for key, value in plain_state_dict(model).items()} == before
    folded = remove_svd_parametrization(model).state_dict()
    assert {key: value.stride() for key, value in folded.items()} == before


def test_a_model_without_registered_weights_gives_its_own_state():
    model = Own()
    state = plain_state_dict(model)
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())


def test_a_single_layer_in_half_precision_and_what_torch_parametrizes_beside():
    layer = nn.Linear(3, 3, dtype=torch.bfloat16)
    nn.utils.parametrize.register_parametrization(layer, "bias", nn.Identity())
    register_svd_parametrization(layer)
    state = plain_state_dict(layer)
    assert list(state) == ["weight", "parametrizations.bias.original"]
    assert state["weight"].dtype == torch.bfloat16
    assert torch.equal(state["weight"], layer.weight)


def test_a_plain_state_loads_into_a_registered_model_and_the_other_way():
    source, model = Own(), Own()
    register_all(model)
    optimizer = torch.optim.SGD(model.parameters())
    factors = list(model.parameters())
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    assert load_plain_state_dict(model, torch.load(file)).missing_keys == []
    assert all(a is b for a, b in zip(model.parameters(), factors, strict=True))
    assert optimizer.param_groups[0]["params"] == factors
    state = plain_state_dict(model)
    for key, value in source.state_dict().items():
        torch.testing.assert_close(state[key], value, rtol=1e-4, atol=1e-5)


def test_missing_keys_go_by_the_names_of_the_plain_model():
    model = nn.Sequential(nn.Linear(3, 3), nn.LSTM(3, 3))
    register_all(model)
    state = plain_state_dict(model)
    del state["1.weight_hh_l0"], state["0.bias"]
    state["other"] = torch.zeros(1)
    loaded = load_plain_state_dict(model, state, strict=False)
    assert loaded.missing_keys == ["0.bias", "1.weight_hh_l0"]
    assert loaded.unexpected_keys == ["other"]
    with pytest.raises(
        TypeError, match=r"^state: expected a mapping of tensors, got str; torch.load\(path\) reads one"
    ):
        load_plain_state_dict(nn.Linear(2, 2), "model.pt")
    with pytest.raises(RuntimeError, match="Missing key"):
        load_plain_state_dict(model, state)


@pytest.mark.parametrize("settings", [{"reflectors": 1}, {"sigma": Bounded(0.01)}])
def test_one_warning_tells_of_weights_that_cannot_be_met(settings):
    def build():
        return nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))

    model = build()
    register_all(model, init="orthogonal", **settings)
    told = r"^0\.weight, 1\.weight, 2\.weight, 3\.weight and 2 more: too few .* differs most, by \d+ %"
    with pytest.warns(UserWarning, match=told) as warned:
        load_plain_state_dict(model, build().state_dict())
    assert len(warned) == 1
    assert warned[0].filename == __file__
