"""What torch promises of parametrized modules, where an SVD stands for the weight."""

import copy
import itertools
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import (
    cached,
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
    transfer_parametrizations_and_params,
    type_before_parametrizations,
)

from spectral_param import (
    SVDParametrization,
    register_svd_parametrization,
    remove_svd_parametrization,
    svd_parametrizations,
)
from spectral_param.parametrization.lookup import is_registered, registered_names


class Doubled(nn.Module):
    """Twice a tensor, with a way back."""

    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


class Cut(nn.Module):
    def forward(self, x):
        return x[:1]


class Sum(nn.Module):
    """Of two trained tensors."""

    def forward(self, a, b):
        return a + b

    def right_inverse(self, x):
        return x / 3, 2 * x / 3


def layer(p=4, q=4, **kwargs):
    return register_svd_parametrization(nn.Linear(q, p, **kwargs))


def everything():
    """An LSTM with an SVD on two weights, something on top of one, and other parametrizations beside them."""
    module = nn.LSTM(3, 4)
    register_svd_parametrization(module, "weight_hh_l0", chunks=4)
    register_svd_parametrization(module, "weight_ih_l0")
    register_parametrization(module, "weight_hh_l0", Doubled())
    register_parametrization(module, "bias_hh_l0", Doubled())
    register_parametrization(module, "bias_ih_l0", Sum())
    return module


TENSORS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


# -------------------------------------------------------------------------------------------- registering, removing


@pytest.mark.parametrize("order", list(itertools.permutations(TENSORS))[::3])
def test_several_are_removed_in_any_order_by_torch(order):
    module, x = everything(), torch.randn(5, 2, 3)
    want = module(x)[0]
    for i, name in enumerate(order):
        remove_parametrizations(module, name)
        assert not is_parametrized(module, name)
        assert all(is_parametrized(module, left) for left in order[i + 1 :])
        assert type_before_parametrizations(module) is nn.LSTM
        torch.testing.assert_close(module(x)[0], want)
    assert type(module) is nn.LSTM
    assert not is_parametrized(module)
    assert not hasattr(module, "parametrizations")
    assert set(dict(module.named_parameters())) == set(TENSORS)


def test_what_torch_removes_can_be_registered_again():
    module = layer()
    weight = module.weight.detach().clone()
    for _ in range(3):
        remove_parametrizations(module, "weight")
        assert type(module) is nn.Linear
        assert module.weight.requires_grad
        register_svd_parametrization(module)
    torch.testing.assert_close(module.weight, weight, rtol=1e-4, atol=1e-5)


def test_the_original_alone_cannot_be_left():
    module = layer()
    with pytest.raises(ValueError, match="leave_parametrized=False"):
        remove_parametrizations(module, "weight", leave_parametrized=False)
    assert registered_names(module) == ["weight"]
    module(torch.randn(2, 4))


@pytest.mark.parametrize("name", ["bias", "scale"])
def test_another_tensor_of_a_registered_module_is_parametrized_alone(name):
    module = layer()
    sibling = copy.deepcopy(module)
    for one in (module, sibling):
        one.register_buffer("scale", torch.ones(4))
    before = getattr(sibling, name)
    register_parametrization(module, name, Doubled())
    assert getattr(sibling, name) is before
    assert not is_parametrized(sibling, name)
    setattr(sibling, name, nn.Parameter(torch.full((4,), 5.0)) if name == "bias" else torch.full((4,), 5.0))
    assert getattr(sibling, name)[0] == 5
    assert getattr(copy.deepcopy(sibling), name)[0] == 5
    assert name in dict(sibling.state_dict())
    torch.testing.assert_close(getattr(module, name), before)
    setattr(module, name, torch.full((4,), 3.0))
    assert getattr(module, name)[0] == 3
    assert isinstance(layer().bias, nn.Parameter)
    remove_parametrizations(module, name)
    assert getattr(module, name)[0] == 3
    assert is_registered(module, "weight")
    remove_parametrizations(module, "weight")
    assert type(module) is nn.Linear
    assert type(remove_svd_parametrization(sibling)) is nn.Linear


def test_parametrized_by_others_before_and_after():
    module = register_parametrization(nn.Linear(4, 4), "bias", Doubled())
    bias = module.bias.detach().clone()
    register_svd_parametrization(module)
    assert torch.equal(module.bias, bias)
    assert type_before_parametrizations(module) is nn.Linear
    with pytest.raises(ValueError, match="parametrized already"):
        register_svd_parametrization(module, "weight")
    remove_svd_parametrization(module)
    assert torch.equal(module.bias, bias)
    assert type_before_parametrizations(module) is nn.Linear
    remove_parametrizations(module, "bias")
    assert type(module) is nn.Linear


@pytest.mark.parametrize("on_top", [Cut(), Sum(), nn.Linear(3, 3)])
def test_what_cannot_stand_on_top_is_refused_and_leaves_the_module(on_top):
    module = layer()
    before = module.weight.detach().clone()
    for unsafe in (False, True):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            register_parametrization(module, "weight", on_top, unsafe=unsafe)
    assert len(module.parametrizations.weight) == 1
    assert torch.equal(module.weight, before)


def test_a_name_that_is_not_there_is_torchs_error():
    with pytest.raises(ValueError, match="does not have a parameter, a buffer, or a parametrized element"):
        register_parametrization(layer(), "nothing", Doubled())
    with pytest.raises(ValueError, match="does not have a parametrization on bias"):
        remove_parametrizations(layer(), "bias")


def test_on_top_trains_through_and_is_assigned_through():
    module = register_parametrization(layer(), "weight", Doubled())
    module.weight = torch.eye(4)
    torch.testing.assert_close(module.weight, torch.eye(4))
    module(torch.randn(2, 4)).sum().backward()
    [(_, p)] = svd_parametrizations(module)
    assert all(factor.grad is not None for factor in p.factors)
    torch.testing.assert_close(2 * p(*p.factors), module.weight)


def test_a_factor_may_be_parametrized_itself():
    module = layer()
    held = module.parametrizations.weight
    before = module.weight.detach().clone()
    register_parametrization(held, "original1", Doubled())
    torch.testing.assert_close(module.weight, before)
    assert "parametrizations.weight.parametrizations.original1.original" in dict(module.named_parameters())
    module(torch.randn(2, 4)).sum().backward()
    assert held.parametrizations.original1.original.grad is not None
    twin = copy.deepcopy(module)
    assert torch.equal(twin.weight, module.weight)
    remove_svd_parametrization(twin)
    torch.testing.assert_close(twin.weight, before)
    remove_parametrizations(held, "original1")
    torch.testing.assert_close(module.weight, before)


@pytest.mark.parametrize("theirs", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_torchs_own_on_another_layer_of_the_model_and_on_top(theirs):
    module = layer()
    if theirs is parametrizations.weight_norm:  # makes two tensors of one
        with pytest.raises(ValueError, match="remove_svd_parametrization"):
            theirs(module)
    else:
        theirs(module.eval())
        assert torch.linalg.matrix_norm(module.weight, 2) < 1.5
        remove_parametrizations(module, "weight")
    model = nn.Sequential(module, theirs(nn.Linear(4, 4)))
    model(torch.randn(2, 4)).sum().backward()
    copy.deepcopy(model)


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_the_modules(training):
    module = nn.Linear(4, 4).train(training)
    register_svd_parametrization(module)
    assert all(m.training == training for m in module.parametrizations.weight.children())
    assert not any(m.training for m in module.eval().modules())


# ------------------------------------------------------------------------------------------------- caching, copies


def test_cached_serves_one_weight_and_forgets_it():
    module, twin = layer(), layer()
    with cached():
        weight = module.weight
        assert module.weight is weight
        assert twin.weight is not weight
        with torch.no_grad():
            copied = copy.deepcopy(module)
        assert copied.weight is not weight
        module(torch.randn(2, 4)).sum().backward()
    assert module.weight is not weight


def test_torch_counts_and_names_what_it_is_told():
    module = everything()
    state = module.state_dict()
    assert len(state) == 3 + 3 + 1 + 2
    assert set(state) == set(dict(module.named_parameters()))
    fresh = everything()
    assert not any(fresh.load_state_dict(state))
    x = torch.randn(5, 2, 3)
    assert torch.equal(fresh(x)[0], module(x)[0])
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x)[0], module(x)[0])
        assert type_before_parametrizations(twin) is nn.LSTM
        assert set(TENSORS) == set(twin.parametrizations)
        assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in module.parameters()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        layer(4, 4).load_state_dict(layer(5, 4).state_dict())


class Own(nn.Linear):
    pass


@pytest.mark.parametrize("inside_cached", [True, False])
def test_parametrizations_are_transferred_to_a_plain_module(inside_cached):
    source, target = layer(), Own(4, 4)
    source.extra = nn.Parameter(torch.ones(2))
    register_parametrization(source, "bias", Doubled())
    context = cached() if inside_cached else torch.enable_grad()
    with context:
        moved = transfer_parametrizations_and_params(source, target)
        torch.testing.assert_close(moved.weight, source.weight)
    assert type_before_parametrizations(moved) is Own
    assert torch.equal(moved.bias, source.bias)
    x = torch.randn(2, 4)
    torch.testing.assert_close(moved(x), source(x))
    alone = transfer_parametrizations_and_params(layer(), Own(4, 4), "weight")
    assert type_before_parametrizations(alone) is Own
    alone(x).sum().backward()


def test_attributes_that_are_missing_are_missing_by_their_names():
    with pytest.raises(AttributeError, match="nothing"):
        layer().nothing  # noqa: B018
    module = layer()
    module.note = "mine"
    assert copy.deepcopy(module).note == "mine"
    assert "parametrizations" in repr(module)
    assert isinstance(module.parametrizations.weight[0], SVDParametrization)


# ------------------------------------------------------------------------------------------------------------ threads


def test_threads_register_and_remove_layers_of_one_class():
    errors = []

    def work():
        try:
            for _ in range(10):
                module = layer()
                register_parametrization(module, "bias", Doubled())
                module(torch.randn(2, 4)).sum().backward()
                remove_parametrizations(module, "weight")
                remove_parametrizations(module, "bias")
                assert type(module) is nn.Linear
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
