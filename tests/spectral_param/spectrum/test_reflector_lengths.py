import copy

import pytest
import torch
from torch import nn

from spectral_param import Fixed, parameter_groups, register_all, register_svd_parametrization, svd_parametrizations
from spectral_param.spectrum.reflector_lengths import LENGTH_BY_SIGMA

OPTIMIZERS = {
    "adam": lambda groups: torch.optim.Adam(groups),
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
}


def layer(**settings):
    torch.manual_seed(0)
    return register_svd_parametrization(nn.Linear(12, 8, dtype=torch.float64), init="orthogonal", **settings)


def held_of(module):
    [(_, held)] = svd_parametrizations(module)
    return held


def step(module, optimizer):
    optimizer.zero_grad()
    (module(torch.eye(12, dtype=torch.float64)) * torch.arange(8)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_reflectors_grow_with_sigma_by_powers_of_two_and_w_keeps_its_bits(name):
    module = layer()
    optimizer = OPTIMIZERS[name](parameter_groups(module, lr=0.0, optimizer=name))
    held = held_of(module)
    u, sigma, v = (factor.detach().clone() for factor in held.factors)
    with torch.no_grad():
        held.raw_sigma.mul_(5)
    weight = module.weight.detach().clone()
    step(module, optimizer)
    torch.testing.assert_close(held.factors[0], 4 * u, rtol=0, atol=0)
    torch.testing.assert_close(held.factors[2], 4 * v, rtol=0, atol=0)
    torch.testing.assert_close(module.weight, weight, rtol=0, atol=0)
    with torch.no_grad():
        held.raw_sigma.copy_(sigma)
    step(module, optimizer)
    torch.testing.assert_close(held.factors[0], u, rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_moves_w_as_far_once_sigma_has_grown(name):
    def moved(growth):
        module = layer(train="reflectors")
        held = held_of(module)
        groups = parameter_groups(module, lr=1e-6, optimizer=name)
        held.raw_sigma.requires_grad_(False)
        optimizer = OPTIMIZERS[name](groups)
        with torch.no_grad():
            held.raw_sigma.mul_(growth)
        for group in optimizer.param_groups:
            rate, group["lr"] = group["lr"], 0.0
            group["rate"] = rate
        step(module, optimizer)  # by nothing: the lengths follow
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = group["rate"]
        before = module.weight.detach().clone()
        optimizer.zero_grad()
        module.weight.mul(torch.linspace(-1, 1, 96, dtype=torch.float64).view(8, 12)).sum().backward()
        optimizer.step()
        return torch.linalg.matrix_norm(module.weight.detach() - before).item()

    start = moved(1)
    torch.testing.assert_close(moved(8), start, rtol=1e-3, atol=0)
    torch.testing.assert_close(moved(0.25), start, rtol=1e-3, atol=0)
    assert start / 2 < moved(3) < 2 * start


def test_a_resumed_run_goes_on_bit_by_bit():
    def new(seed):
        torch.manual_seed(seed)
        module = register_svd_parametrization(nn.Linear(12, 8, dtype=torch.float64))
        return module, torch.optim.Adam(parameter_groups(module, lr=0.02))

    module, optimizer = new(0)
    for _ in range(20):
        step(module, optimizer)
    saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    for _ in range(20):
        step(module, optimizer)
    again, its_optimizer = new(1)
    again.load_state_dict(saved[0])
    its_optimizer.load_state_dict(saved[1])
    for _ in range(20):
        step(again, its_optimizer)
    for key, value in module.state_dict().items():
        torch.testing.assert_close(again.state_dict()[key], value, rtol=0, atol=0)


def test_noise_in_sigma_leaves_lengths_alone():
    module = layer()
    optimizer = torch.optim.SGD(parameter_groups(module, lr=0.0, optimizer="sgd"))
    held = held_of(module)
    with torch.no_grad():
        held.raw_sigma.mul_(2**0.8)
    step(module, optimizer)
    u = held.factors[0].detach().clone()
    for share in (1.2, 0.8, 1.1, 0.7):
        with torch.no_grad():
            held.raw_sigma.mul_(share)
        step(module, optimizer)
        torch.testing.assert_close(held.factors[0], u, rtol=0, atol=0)


def test_reflectors_of_zeros_stay_numbers():
    module = layer()
    optimizer = torch.optim.SGD(parameter_groups(module, lr=0.0, optimizer="sgd"))
    with torch.no_grad():
        held_of(module).factors[0].zero_()
    step(module, optimizer)
    assert held_of(module).factors[0].count_nonzero() == 0


def test_what_has_no_rate_or_no_sigma_that_moves_is_left_alone():
    fixed, frozen = nn.Sequential(nn.Linear(8, 8)), nn.Sequential(nn.Linear(8, 8))
    register_all(fixed, sigma=Fixed(), init="orthogonal")
    register_all(frozen, base="frozen", reflectors=2)
    for groups in (parameter_groups(fixed, lr=0.1), parameter_groups(frozen, lr=0.1), parameter_groups(layer())):
        assert not any(LENGTH_BY_SIGMA in group for group in groups)


def test_a_copied_optimizer_says_that_its_reflectors_do_not_grow():
    module = layer()
    optimizer = torch.optim.SGD(parameter_groups(module, lr=0.1, optimizer="sgd"))
    _, copied = copy.deepcopy((module, optimizer))
    with pytest.warns(UserWarning, match="build it anew from parameter_groups"):
        copied.step()
    copied.step()  # told once
