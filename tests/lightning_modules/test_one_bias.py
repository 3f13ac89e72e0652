import pytest
import torch
from torch import nn

from lightning_modules.one_bias import OneBias

KINDS = pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {})],
)


def twin(layer: OneBias, kind, options) -> nn.RNNBase:
    """torch's own layer with the same weights, its second bias zero."""
    weight = layer.layer.weight_ih_l0.detach()
    reference = kind(weight.shape[1] - 1, layer.layer.hidden_size, batch_first=True, **options)
    reference.load_state_dict(
        {
            "weight_ih_l0": weight[:, :-1],
            "weight_hh_l0": layer.layer.weight_hh_l0.detach(),
            "bias_ih_l0": weight[:, -1],
            "bias_hh_l0": torch.zeros(len(weight)),
        }
    )
    return reference


@KINDS
@pytest.mark.parametrize("given", [False, True])
def test_equals_torchs_layer_with_one_bias(kind, options, given):
    layer = OneBias(kind, 3, 5, **options)
    input = torch.randn(2, 7, 3)
    state = torch.randn(1, 2, 5)
    hx = None if not given else (state, state.cos()) if kind is nn.LSTM else state
    torch.testing.assert_close(layer(input, hx), twin(layer, kind, options)(input, hx))


@KINDS
def test_initial_state_is_trained(kind, options):
    layer = OneBias(kind, 3, 5, learn_initial_state=True, **options)
    assert (layer.initial_state == 0).all()
    nn.init.normal_(layer.initial_state)
    input = torch.randn(2, 7, 3)
    states = [state.expand(1, 2, 5).contiguous() for state in layer.initial_state.detach()]
    hx = tuple(states) if kind is nn.LSTM else states[0]
    output, _ = layer(input)
    torch.testing.assert_close(output, twin(layer, kind, options)(input, hx)[0])
    output.sum().backward()
    assert (layer.initial_state.grad != 0).all()


@KINDS
def test_a_given_state_comes_before_the_trained_one(kind, options):
    layer = OneBias(kind, 3, 5, learn_initial_state=True, **options)
    nn.init.normal_(layer.initial_state)
    zero = torch.zeros(1, 2, 5)
    hx = (zero, zero) if kind is nn.LSTM else zero
    input = torch.randn(2, 7, 3)
    torch.testing.assert_close(layer(input, hx), twin(layer, kind, options)(input, hx))
