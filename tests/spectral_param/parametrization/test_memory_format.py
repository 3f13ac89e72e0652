"""A kernel keeps its channels last in memory, as a plain convolution does."""

import copy
import pickle

import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization, remove_svd_parametrization, together

KINDS = {
    "Conv2d": lambda: nn.Conv2d(4, 6, 3),
    "Conv2d 1×1": lambda: nn.Conv2d(4, 6, 1),
    "Conv2d in groups": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "Conv3d": lambda: nn.Conv3d(4, 6, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 6, 3),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def last(module):
    dimensions = next(module.parameters()).dim() if not hasattr(module, "weight") else module.weight.dim()
    return torch.channels_last if dimensions == 4 else torch.channels_last_3d


def strides(kind):
    module = kind()
    return module.to(memory_format=last(module)).weight.stride()


@pytest.mark.parametrize("before", [True, False])
def test_channels_stay_last_through_whatever_is_done_to_the_layer(kind, before):
    module, want = kind(), strides(kind)
    if before:
        module.to(memory_format=last(module))
    register_svd_parametrization(module)
    if not before:
        module.to(memory_format=last(module))
    for twin in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert twin.weight.stride() == want
        assert twin.double().weight.stride() == want
    with together(module):
        assert module.weight.stride() == want
    module.reset_parameters()
    assert module.weight.stride() == want
    module.weight = module.weight.detach().contiguous()
    assert module.weight.stride() == want
    assert remove_svd_parametrization(module).weight.stride() == want


def test_equal_kernels_built_together_have_their_channels_last():
    model = nn.Sequential(*(register_svd_parametrization(nn.Conv2d(4, 4, 3)) for _ in range(3)))
    model.to(memory_format=torch.channels_last)
    with together(model):
        assert {layer.weight.stride() for layer in model} == {(36, 1, 12, 4)}


def test_outputs_lie_in_memory_as_those_of_a_plain_layer(kind):
    plain = kind()
    x = torch.randn(2, 4, *[7] * (plain.weight.dim() - 2))
    plain.to(memory_format=last(plain))
    registered = register_svd_parametrization(copy.deepcopy(plain))
    assert registered(x).stride() == plain(x).stride()


def test_channels_come_first_again(kind):
    module = kind()
    module.to(memory_format=last(module))
    want = kind().weight.stride()
    assert register_svd_parametrization(module).to(memory_format=torch.contiguous_format).weight.stride() == want
