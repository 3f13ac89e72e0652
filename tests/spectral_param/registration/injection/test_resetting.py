import copy

import pytest
import torch
from torch import nn

from spectral_param import Band, register_all, register_svd_parametrization, singular_values

KINDS = {
    "RNN": lambda: nn.RNN(3, 4, 2),
    "LSTM": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "GRU": lambda: nn.GRU(3, 4),
    "RNNCell": lambda: nn.RNNCell(3, 4),
    "LSTMCell": lambda: nn.LSTMCell(3, 4),
    "GRUCell": lambda: nn.GRUCell(3, 4),
    "Linear": lambda: nn.Linear(3, 4),
    "Conv2d": lambda: nn.Conv2d(3, 4, 3),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(3, 4, 3),
    "Embedding": lambda: nn.Embedding(5, 3),
    "Bilinear": lambda: nn.Bilinear(3, 4, 5),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "MultiheadAttention of other sizes": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_resetting_draws_the_numbers_of_the_plain_module(kind):
    plain = KINDS[kind]()
    registered = copy.deepcopy(plain)
    register_all(registered)
    states = []
    for module in (plain, registered):
        torch.manual_seed(3)
        (module._reset_parameters if isinstance(module, nn.MultiheadAttention) else module.reset_parameters)()
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    for name, want in plain.named_parameters(recurse=False):
        torch.testing.assert_close(getattr(registered, name), want, rtol=1e-5, atol=2e-6)


def test_resetting_keeps_what_is_trained_and_the_parameters_themselves():
    layer = register_svd_parametrization(nn.Linear(4, 4), train="sigma")
    before = list(layer.named_parameters())
    layer.reset_parameters()
    for (name, parameter), (other_name, other) in zip(before, layer.named_parameters(), strict=True):
        assert (name, parameter.requires_grad) == (other_name, other.requires_grad)
        assert parameter is other


def test_resetting_an_orthogonal_start_draws_another():
    layer = register_svd_parametrization(nn.Linear(4, 4), sigma=Band(0.1), init="orthogonal")
    before = layer.weight.detach()
    layer.reset_parameters()
    torch.testing.assert_close(singular_values(layer), torch.ones(4))
    assert not torch.allclose(layer.weight, before)


class WithNew(nn.Linear):
    def __new__(cls, first, second):
        new = super().__new__(cls)
        new.given = (first, second)
        return new

    def __getnewargs__(self):
        return self.given


def test_a_class_with_a_new_of_its_own_arguments_is_reset():
    layer = register_svd_parametrization(WithNew(3, 4))
    before = layer.weight.detach()
    layer.reset_parameters()
    assert not torch.allclose(layer.weight, before)
    assert layer.given == (3, 4)
