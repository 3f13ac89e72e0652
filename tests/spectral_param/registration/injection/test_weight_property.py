"""Reading and assigning, outside of a forward and within."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from spectral_param import (
    SVDParametrization,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
    svd_parametrizations,
)


def test_an_assignment_ends_the_watch_over_what_was_read_before():
    """Warnings are errors here."""
    layer = register_svd_parametrization(nn.Linear(4, 4))
    weight = layer.weight
    with torch.no_grad():
        weight.mul_(2)
    layer.weight = weight
    torch.testing.assert_close(layer(torch.eye(4)) - layer.bias, weight.mT, rtol=1e-5, atol=1e-5)


class Looks(nn.MultiheadAttention):
    """Reads its weight without a graph before torch reads it with one."""

    def forward(self, x):
        with torch.no_grad():
            self.norm = self.in_proj_weight.norm()
        return super().forward(x, x, x, need_weights=False)[0]


class Halves(nn.MultiheadAttention):
    """Reads its weight and assigns half of it, before torch reads it."""

    def forward(self, x):
        self.in_proj_weight = 0.5 * self.in_proj_weight.detach()
        return super().forward(x, x, x, need_weights=False)[0]


def twins(kind):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2)
    module = kind(8, 2)
    module.load_state_dict(plain.state_dict())
    return plain, register_svd_parametrization(module, "in_proj_weight", chunks=3), torch.randn(5, 3, 8)


def test_attention_reads_its_weight_once_for_each_gradient_mode():
    plain, module, x = twins(Looks)
    want, got = plain(x, x, x, need_weights=False)[0], module(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.norm, plain.in_proj_weight.norm())
    got.square().sum().backward()
    [(_, p)] = svd_parametrizations(module)
    assert all(factor.grad is not None and factor.grad.any() for factor in p.factors)


def test_an_assignment_within_a_forward_is_what_is_read_after_it():
    plain, module, x = twins(Halves)
    for _ in range(2):
        with torch.no_grad():
            plain.in_proj_weight.mul_(0.5)
        want, got = plain(x, x, x, need_weights=False)[0], module(x)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.in_proj_weight, plain.in_proj_weight, rtol=1e-5, atol=1e-6)


@pytest.fixture
def tied():
    """A head, and an embedding that a plain head could share its weight with."""
    return register_svd_parametrization(nn.Linear(6, 12, bias=False)), nn.Embedding(12, 6)


@pytest.mark.parametrize("registered", [True, False])
def test_a_tie_after_registering_is_told(tied, registered):
    head, embedding = tied
    if registered:
        register_svd_parametrization(embedding)
    with pytest.warns(UserWarning, match="the weight of another module is copied .* the two are not tied"):
        head.weight = embedding.weight
    torch.testing.assert_close(head.weight, embedding.weight, rtol=1e-5, atol=1e-5)


def test_a_tie_of_an_attention_or_a_list_is_told(tied):
    head, _ = tied
    weights = nn.ParameterList([nn.Parameter(torch.ones(12, 6))])
    with pytest.warns(UserWarning, match="the two are not tied"):
        head.weight = weights[0]


def test_values_that_nobody_else_owns_are_assigned_without_a_word(tied):
    head, embedding = tied
    loose = nn.Parameter(torch.randn(12, 6))
    for value in (torch.randn(12, 6), loose, nn.Parameter(torch.randn(12, 6)), nn.Linear(6, 12).weight.detach()):
        head.weight = value
    head.weight = head.weight
    head.weight = 2 * head.weight
    head.weight = embedding.weight.detach()
    head.weight = nn.Linear(6, 12).weight


@pytest.fixture
def swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("train", ["all", "sigma"])
@pytest.mark.parametrize("convert", [lambda m: m.double(), lambda m: m.load_state_dict(m.state_dict())])
def test_parameters_are_swapped_after_reads_and_steps(swapping, train, convert):
    layer = register_svd_parametrization(nn.Linear(8, 8), train=train)
    layer.weight.norm()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    layer(torch.ones(2, 8))
    want = layer.weight.detach().clone()
    convert(layer)
    torch.testing.assert_close(layer.weight.float(), want, rtol=1e-5, atol=1e-5)


def test_parameters_are_swapped_on_a_plain_model_after_a_refusal_and_a_removal(swapping):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        register_all(model)
    assert model.double()[0].weight.dtype == torch.float64
    remove_svd_parametrization(register_svd_parametrization(model[0]))
    assert model.float()[0].weight.dtype == torch.float32


class Experts(nn.Module):
    """A matrix for each expert, read one after another."""

    def __init__(self):
        super().__init__()
        self.up_proj = nn.Parameter(torch.randn(3, 6, 4))

    def one(self, x, i):
        return torch.tanh(x @ self.up_proj[i].mT) @ self.up_proj[i]

    def forward(self, x, part=None):
        run = self.one if part is None else lambda *args: checkpoint(self.one, *args, use_reentrant=part == "again")
        return sum(run(x, i) for i in range(3))


@pytest.mark.parametrize("whole", [None, "saved", "again"])
@pytest.mark.parametrize("part", [None, "saved", "again"])
def test_experts_are_built_once_a_forward_and_anew_in_what_is_checkpointed(monkeypatch, whole, part):
    plain, count, forward = Experts(), [], SVDParametrization.forward
    experts = copy.deepcopy(plain)
    register_all(experts)
    monkeypatch.setattr(SVDParametrization, "forward", lambda self, *f: (count.append(1), forward(self, *f))[1])
    x, want = torch.randn(2, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    with torch.no_grad():
        want.copy_(x)

    def run(module, x):
        if whole is None:
            return module(x, part)
        return checkpoint(module, x, part, use_reentrant=whole == "again")

    y = run(experts, x)
    assert len(count) == (6 if part == "saved" and whole != "again" else 1)
    y.square().sum().backward()
    plain(want).square().sum().backward()
    torch.testing.assert_close(x.grad, want.grad, rtol=1e-4, atol=1e-4)
