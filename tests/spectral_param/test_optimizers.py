import copy

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


# ------------------------------------------------------------------------------------------ at the plain model's rate


def moved(layer, optimizer_of):
    """How far a step by a random gradient, always the same, moves a weight in the Frobenius norm."""
    before = layer.weight.detach().clone()
    optimizer = optimizer_of(layer)
    torch.manual_seed(1)
    (layer.weight * torch.randn(layer.weight.shape)).sum().backward()
    optimizer.step()
    return torch.linalg.vector_norm(layer.weight.detach() - before).item()


FORMS = {
    "fitted": {},
    "drawn": {"init": "orthogonal"},
    "few": {"reflectors": 4, "init": "orthogonal"},
    "of U alone": {"reflectors": (20, 0), "init": "orthogonal"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(40, 40), (20, 80), (80, 20)])
@pytest.mark.parametrize("scale", [0.3, 30.0])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adafactor])
def test_a_step_moves_a_weight_about_as_far_as_a_plain_one(kind, scale, shape, form):
    torch.manual_seed(0)
    plain = nn.Linear(*shape, bias=False)
    nn.init.normal_(plain.weight, std=scale / 10)
    layer = copy.deepcopy(plain)
    register_svd_parametrization(layer, **FORMS[form])
    by_groups = moved(layer, lambda layer: kind(parameter_groups(layer, lr=1e-4, optimizer=kind), lr=1e-4))
    reference = plain if form == "fitted" else nn.Linear(*shape, bias=False)
    if form != "fitted":
        reference.weight.data = layer.weight.detach().clone()
    plainly = moved(reference, lambda layer: kind(layer.parameters(), lr=1e-4))
    assert plainly < by_groups < 5 * plainly  # three parts, of which drawn reflectors of few entries turn farther


@pytest.mark.parametrize("shape", [(40, 40), (10, 90), (90, 10)])
@pytest.mark.parametrize(("part", "times"), [("sigma", 1.5), ("reflectors U", 1), ("reflectors V", 1)])
def test_reflectors_move_a_weight_as_far_as_a_plain_step_and_sigma_farther(part, times, shape):
    torch.manual_seed(0)
    layer = register_svd_parametrization(nn.Linear(*shape, bias=False))
    groups = [group for group in parameter_groups(layer, lr=1e-4) if group["name"].startswith(part)]
    assert moved(layer, lambda layer: torch.optim.Adam(groups)) == pytest.approx(
        times * 1e-4 * layer.weight.numel() ** 0.5, rel=0.2
    )


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
def test_weight_decay_is_that_of_the_plain_weight(kind):
    plain = nn.Linear(30, 20, bias=False)
    layer = register_svd_parametrization(copy.deepcopy(plain))
    groups = parameter_groups(layer, lr=1e-2, optimizer=kind, weight_decay=0.5)
    for one, optimizer in ((plain, kind(plain.parameters(), lr=1e-2, weight_decay=0.5)), (layer, kind(groups))):
        (one.weight * 0).sum().backward()
        optimizer.step()
    torch.testing.assert_close(layer.weight, plain.weight)


def test_no_decay_of_reflectors_and_of_sigma_under_a_map():
    layer = register_svd_parametrization(nn.Linear(6, 4), sigma=Band(0.1), init="orthogonal")
    groups = parameter_groups(layer, lr=0.1, weight_decay=0.5)
    assert [(group["name"], group["weight_decay"]) for group in groups] == [
        ("others", 0.5),
        ("reflectors U weight 4×6", 0.0),
        ("reflectors V weight 4×6", 0.0),
        ("sigma weight 4×6", 0.0),
    ]


def test_what_is_said_of_sigma_goes_before_what_is_found():
    model = network()
    register_all(model)
    groups = parameter_groups(model, lr=1e-3, weight_decay=0.1, sigma_lr=0.5, sigma_weight_decay=0.2)
    sigma = [group for group in groups if group["name"].startswith("sigma")]
    assert {(group["lr"], group["weight_decay"]) for group in sigma} == {(0.5, 0.2)}
    assert len(sigma) == 3
    still = parameter_groups(model, lr=1e-3, weight_decay=0.1, sigma_lr=0.0)
    assert [group["weight_decay"] for group in still if group["name"].startswith("sigma")] == [0.0] * 3


def test_sigma_in_a_band_moves_by_the_same_share_of_it():
    rates = []
    for radius in (0.01, 0.5):
        layer = register_svd_parametrization(nn.Linear(64, 16), sigma=Band(radius), init="orthogonal")
        rates.append([group["lr"] for group in parameter_groups(layer, lr=1e-3) if group["name"].startswith("sigma")])
    torch.testing.assert_close(torch.tensor(rates), torch.full((2, 1), 2 * 8e-3))


def test_layers_whose_names_differ_in_numbers_share_their_groups():
    model = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)])
    register_all(model)
    names = [(group["name"], len(group["params"])) for group in parameter_groups(model, lr=1e-3)]
    assert names[1:] == [
        ("reflectors U *.*.weight 6×6", 3),
        ("reflectors V *.*.weight 6×6", 3),
        ("sigma *.*.weight 6×6", 3),
    ]


def test_no_two_groups_have_one_name():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    register_svd_parametrization(model[0], reflectors=2, init="orthogonal")
    register_svd_parametrization(model[1])
    names = [group["name"] for group in parameter_groups(model, lr=1e-3)]
    assert len(set(names)) == len(names) == 7


def test_groups_of_a_trained_model_take_the_state_of_its_optimizer():
    def fresh():
        torch.manual_seed(0)
        model = network()
        register_all(model, sigma=Band(0.5), init="orthogonal")
        return model

    model, later = fresh(), fresh()
    optimizer = torch.optim.Adam(parameter_groups(model, lr=0.1))
    for _ in range(30):
        step(model, optimizer)
    later.load_state_dict(model.state_dict())
    resumed = torch.optim.Adam(parameter_groups(later, lr=0.1))
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(model, optimizer)
    step(later, resumed)
    assert torch.equal(later[0].weight, model[0].weight)


def test_a_weight_of_zeros_has_rates():
    layer = nn.Linear(8, 8)
    nn.init.zeros_(layer.weight)
    register_svd_parametrization(layer)
    assert all(0 < group["lr"] < 1 for group in parameter_groups(layer, lr=1e-3))


@pytest.mark.parametrize("name", ["AdamW", "rmsprop", torch.optim.NAdam, "Lion"])
def test_optimizers_by_name_and_class(name):
    layer = register_svd_parametrization(nn.Linear(64, 64), init="orthogonal")
    assert parameter_groups(layer, lr=1e-3, optimizer=name)[-1]["lr"] == pytest.approx(1.5e-3 * 8)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("muon", "takes plain matrices"),
        (torch.optim.LBFGS, "finds the length of its steps by itself"),
        (torch.optim.Adadelta, "finds the length of its steps by itself"),
        ("adamm", "optimizer: expected one of adam, adamw, .*, got adamm; name one that moves alike"),
    ],
)
def test_optimizers_without_a_rule_are_named(optimizer, message):
    with pytest.raises(ValueError, match=message):
        parameter_groups(network(), lr=1e-3, optimizer=optimizer)


def test_an_optimizer_that_is_there_already_is_no_kind():
    with pytest.raises(TypeError, match="optimizer: expected a class or a name, got Adam"):
        parameter_groups(network(), lr=1e-3, optimizer=torch.optim.Adam(network().parameters()))


@pytest.mark.parametrize("argument", ["lr", "weight_decay", "sigma_lr", "sigma_weight_decay"])
def test_a_rate_or_decay_that_is_none_is_refused_by_name(argument):
    for wrong in ("1e-3", [1e-3], True, 1j):
        with pytest.raises(TypeError, match=f"^{argument}: expected a number, got {type(wrong).__name__}"):
            parameter_groups(nn.Linear(3, 3), **{argument: wrong})
    for wrong in (-1e-3, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"^{argument}: expected a finite number of at least 0, got {wrong}"):
            parameter_groups(nn.Linear(3, 3), **{argument: wrong})


def test_a_rate_may_be_a_tensor_as_torch_has_it():
    layer = register_svd_parametrization(nn.Linear(3, 3))
    groups = parameter_groups(layer, lr=torch.tensor(1e-3))
    assert all(isinstance(group["lr"], torch.Tensor) for group in torch.optim.Adam(groups, foreach=False).param_groups)


def test_on_the_meta_device_there_are_no_rates():
    with torch.device("meta"):
        model = network()
        register_all(model)
    assert [group["name"] for group in parameter_groups(model)] == ["others", "reflectors", "sigma"]
    with pytest.raises(ValueError, match="model: expected weights with numbers"):
        parameter_groups(model, lr=1e-3)


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


def test_a_frozen_base_has_rates_by_its_own_size_and_stays_out():
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16))
    register_all(model, base="frozen", rank=4)
    for kind in ("adam", "sgd", "adafactor"):
        groups = parameter_groups(model, lr=1e-3, optimizer=kind)
        assert all(group["lr"] > 0 for group in groups)
        assert all(parameter.requires_grad for group in groups for parameter in group["params"])
        assert sum(len(group["params"]) for group in groups) == 2 + 2 * 3
    [sigma] = [
        g["lr"] for g in parameter_groups(model, lr=1e-3) if g["name"].startswith("sigma") and "48×64" in g["name"]
    ]
    assert sigma == pytest.approx(1.5e-3 * 8)


def test_an_optimizer_of_one_vector_takes_factors_before_its_first_step_alone():
    layer, x = nn.Linear(3, 3), torch.randn(4, 3)
    optimizer = torch.optim.LBFGS(layer.parameters())

    def closure():
        optimizer.zero_grad()
        loss = (layer(x) - 1).square().sum()
        loss.backward()
        return loss

    register_svd_parametrization(layer)
    add_factors_(optimizer, layer)
    optimizer.step(closure)
    assert closure() < 1
    with pytest.raises(ValueError, match="optimizer: expected .* got an LBFGS that has stepped; build it anew"):
        add_factors_(optimizer, layer)
