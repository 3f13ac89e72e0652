"""Code that would lose what it does to a registered weight is told so, and the module is as before."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import fusion, parametrizations, prune, spectral_norm, weight_norm

from spectral_param import Band, Fixed, register_svd_parametrization


def layer(**kwargs):
    return register_svd_parametrization(nn.Linear(6, 6), **kwargs)


def unchanged(module):
    """Raises, once what is under it has raised, if the module is not as it was."""
    before = {name: value.clone() for name, value in module.state_dict().items()}

    def check():
        assert module.state_dict().keys() == before.keys()
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
        assert not module._forward_pre_hooks

    return check


CALLS = {
    "functional_call": functional_call,
    "a model around it": lambda m, weights, x: functional_call(
        nn.Sequential(m), {f"0.{name}": w for name, w in weights.items()}, (x,)
    ),
    "vmap": lambda m, weights, x: vmap(lambda w: functional_call(m, {**weights, "weight": w}, x))(torch.ones(3, 6, 6)),
    "grad": lambda m, weights, x: grad(lambda w: functional_call(m, {"weight": w}, x).sum())(weights["weight"]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_functional_call_with_the_plain_name_is_refused(call):
    module = layer(reflectors=2, sigma=Band(0.1), init="orthogonal")
    check, remedy = unchanged(module), "hand in the factors, Linear's parametrizations.weight.original0 and so on"
    with pytest.raises(ValueError, match=f"weight: Linear's is computed from its SVD, .* {remedy}"):
        call(module, {"bias": torch.zeros(6), "weight": torch.ones(6, 6)}, torch.ones(2, 6))
    check()


def test_functional_call_of_a_recurrent_module_with_the_plain_name_is_refused():
    module = register_svd_parametrization(nn.LSTM(3, 4), "weight_hh_l0", chunks=4)
    check = unchanged(module)
    with pytest.raises(ValueError, match="weight_hh_l0: LSTM's is computed from its SVD"):
        functional_call(module, {"weight_hh_l0": torch.ones(16, 4)}, (torch.ones(2, 1, 3),))
    check()
    weight_ih = module.weight_ih_l0
    functional_call(module, {"weight_ih_l0": torch.zeros(16, 3)}, (torch.ones(2, 1, 3),))
    assert module.weight_ih_l0 is weight_ih


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "put_on_top",
    [
        weight_norm,
        lambda m: prune.l1_unstructured(m, "weight", amount=0.5),
        lambda m: prune.random_structured(m, "weight", amount=0.5, dim=0),
        lambda m: prune.global_unstructured([(m, "weight")], prune.L1Unstructured, amount=0.5),
        lambda m: prune.custom_from_mask(m, "weight", torch.ones(6, 6)),
        lambda m: fusion.fuse_linear_bn_eval(m.eval(), nn.BatchNorm1d(6).eval()),
        parametrizations.weight_norm,
        parametrizations.orthogonal,
    ],
)
def test_what_cannot_stand_on_a_computed_weight_is_refused_with_the_remedy(put_on_top):
    module = layer()
    check = unchanged(module)
    with pytest.raises(ValueError, match="remove_svd_parametrization"):
        put_on_top(module)
    check()
    module(torch.ones(1, 6))


def test_a_convolution_is_not_fused_with_its_norm():
    conv = register_svd_parametrization(nn.Conv2d(3, 4, 3), sigma=Fixed(), init="orthogonal").eval()
    with pytest.raises(ValueError, match="fuse_conv_bn_eval would have no effect on it; remove_svd_parametrization"):
        fusion.fuse_conv_bn_eval(conv, nn.BatchNorm2d(4).eval())


def test_the_old_spectral_norm_does_not_find_the_weight():
    module = layer()
    check = unchanged(module)
    with pytest.raises(KeyError, match="weight"):
        spectral_norm(module)
    check()


@pytest.mark.parametrize("function", ["merge", "unmerge", "pissa_init", "olora_init"])
def test_an_adapter_is_not_merged_into_a_computed_weight(monkeypatch, function):
    peft = types.ModuleType("peft.tuners.lora.layer")
    monkeypatch.setitem(sys.modules, peft.__name__, peft)
    exec(f"def {function}(base_layer, delta):\n    base_layer.weight.data += delta\n", vars(peft))
    module = layer()
    check = unchanged(module)
    with pytest.raises(ValueError, match=f"{function} would have no effect on it; remove_svd_parametrization"):
        getattr(peft, function)(module, torch.ones(6, 6))
    check()
    exec("def forward(base_layer, x):\n    return base_layer(x) + base_layer.weight.sum()\n", vars(peft))
    peft.forward(module, torch.ones(1, 6))
