import pytest
import torch
from torch import nn

from spectral_param import (
    Band,
    Fixed,
    add_factors_,
    parameter_groups,
    register_all,
    register_svd_parametrization,
    svd_parametrizations,
)


def network():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))


def ids(parameters):
    return sorted(map(id, parameters))


def held_by(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().sum().backward()
    optimizer.step()


# --------------------------------------------------------------------------------------------------------------- groups


def test_every_trained_parameter_is_in_one_group():
    model = network()
    register_svd_parametrization(model[0], reflectors=(2, 0), init="orthogonal")
    register_svd_parametrization(model[2], sigma=Fixed(), init="orthogonal")
    register_svd_parametrization(model[4], train="sigma")
    model[2].bias.requires_grad_(False)
    tied = nn.ModuleDict({"first": model, "again": model})
    others, reflectors, sigma = parameter_groups(tied)
    assert ids(others["params"]) == ids([model[0].bias, model[4].bias])
    (_, first), (_, second), (_, third) = svd_parametrizations(model)
    assert ids(reflectors["params"]) == ids([first.factors[0], *second.factors])
    assert ids(sigma["params"]) == ids([first.factors[1], third.factors[1]])


def test_settings_of_the_groups():
    model = network()
    register_all(model, init="orthogonal")
    groups = parameter_groups(model, weight_decay=0.1, sigma_lr=1e-3, sigma_weight_decay=0.2)
    assert [(group["name"], group["weight_decay"], group.get("lr")) for group in groups] == [
        ("others", 0.1, None),
        ("reflectors", 0.0, None),
        ("sigma", 0.2, 1e-3),
    ]
    assert [group["name"] for group in parameter_groups(network())] == ["others"]
    assert "lr" not in parameter_groups(model)[2]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizers_take_the_groups(kind):
    model = network()
    register_all(model, init="orthogonal")
    optimizer = kind(parameter_groups(model, weight_decay=0.1, sigma_lr=0.0), lr=0.1)
    before = [(p.factors[0].clone(), p.factors[1].clone()) for _, p in svd_parametrizations(model)]
    step(model, optimizer)
    for (_, p), (u, raw) in zip(svd_parametrizations(model), before, strict=True):
        assert not torch.equal(p.factors[0], u)
        assert torch.equal(p.factors[1], raw)


def test_decay_of_sigma_is_that_of_the_weight():
    layer = nn.Linear(5, 4, bias=False)
    before = layer.weight.detach().clone()
    register_svd_parametrization(layer)
    optimizer = torch.optim.SGD(parameter_groups(layer, sigma_weight_decay=0.5), lr=0.1)
    (layer(torch.ones(1, 5)) * 0).sum().backward()
    optimizer.step()
    torch.testing.assert_close(layer.weight, before * 0.95)


# --------------------------------------------------------------------------------- optimizers built before registration


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.LBFGS])
def test_factors_take_the_place_of_weights(kind):
    model = network()
    optimizer = kind(model.parameters(), lr=0.01)
    names = register_all(model, init="orthogonal").taken
    add_factors_(optimizer, model)
    assert ids(held_by(optimizer)) == ids(model.parameters())
    assert len(names) == 3
    if kind is not torch.optim.LBFGS:
        before = [parameter.clone() for parameter in model.parameters()]
        for _ in range(2):
            step(model, optimizer)
        moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True) if p.numel() > 1]
        assert all(moved)


def test_settings_of_the_group_are_kept():
    model = network()
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": [model[2].bias, model[2].weight], "lr": 0.2, "weight_decay": 0.3},
        {"params": model[4].parameters(), "lr": 0.4},
    ]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    step(model, optimizer)
    optimizer.zero_grad()
    weight = model[2].weight
    register_svd_parametrization(model[2], sigma=Band(2.0))
    assert add_factors_(optimizer, model) is optimizer
    assert ids(optimizer.param_groups[1]["params"]) == ids(model[2].parameters())
    assert (optimizer.param_groups[1]["lr"], optimizer.param_groups[1]["weight_decay"]) == (0.2, 0.3)
    assert weight not in optimizer.state
    assert model[2].bias in optimizer.state
    step(model, optimizer)
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.1, 0.2]


def test_weights_of_one_shape_in_one_group():
    model = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    register_all(model)
    add_factors_(optimizer, model)
    assert ids(held_by(optimizer)) == ids(model.parameters())


def test_again_nothing_changes():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    register_all(model)
    add_factors_(optimizer, model)
    before = held_by(optimizer)
    add_factors_(optimizer, model)
    assert [*map(id, held_by(optimizer))] == [*map(id, before)]


def test_only_what_is_trained_is_added():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    register_all(model, train="sigma")
    add_factors_(optimizer, model)
    assert ids(held_by(optimizer)) == ids(p for p in model.parameters() if p.requires_grad)


def test_weights_that_the_optimizer_did_not_hold_stay_outside():
    model = network()
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1)
    register_all(model)
    add_factors_(optimizer, model)
    assert ids(held_by(optimizer)) == ids(model[4].parameters())


def test_frozen_weights_are_told_from_trained_ones_of_their_shape():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    trained = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    everything = torch.optim.SGD(model.parameters(), lr=0.1)
    register_all(model)
    assert ids(held_by(add_factors_(trained, model))) == ids(model[1].parameters())
    assert ids(held_by(add_factors_(everything, model))) == ids([model[0].bias, *model[1].parameters()])


def test_names_of_parameters():
    model = network()
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    register_svd_parametrization(model[2])
    group = add_factors_(optimizer, model).param_groups[0]
    named = dict(model.named_parameters())
    assert ids(named[name] for name in group["param_names"]) == ids(group["params"])
    assert group["param_names"][2] == "2.parametrizations.weight.original0"


def test_weights_of_one_shape_stay_in_their_groups():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.SGD([{"params": [model[i].weight], "lr": 0.1 * (i + 1)} for i in (2, 1)])
    register_all(model)
    add_factors_(optimizer, model)
    for group, i in zip(optimizer.param_groups, (2, 1), strict=True):
        assert ids(group["params"]) == ids(model[i].parametrizations.weight.parameters())


def test_weights_of_another_model_are_left_alone():
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    for layer in (model, other):
        register_svd_parametrization(layer)
    before = held_by(optimizer)
    add_factors_(optimizer, model)
    assert held_by(optimizer)[4] is before[2]
