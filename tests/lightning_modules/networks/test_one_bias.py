import pytest
import torch
from torch import nn

from lightning_modules.networks.one_bias import OneBias

KINDS = pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.GRU, {}), (nn.LSTM, {})],
)
LAYERS = pytest.mark.parametrize("num_layers", [1, 3])


def twin(stack: OneBias, kind, options) -> nn.RNNBase:
    """torch's own layers with the same weights, their second biases zero."""
    input_size, hidden_size = stack.layers[0].input_size - 1, stack.layers[0].hidden_size
    reference = kind(input_size, hidden_size, len(stack.layers), batch_first=True, **options)
    weights = {}
    for i, layer in enumerate(stack.layers):
        weight = layer.weight_ih_l0.detach()
        weights |= {
            f"weight_ih_l{i}": weight[:, :-1],
            f"weight_hh_l{i}": layer.weight_hh_l0.detach(),
            f"bias_ih_l{i}": weight[:, -1],
            f"bias_hh_l{i}": torch.zeros(len(weight)),
        }
    reference.load_state_dict(weights)
    return reference


def states(kind, state):
    return (state, state.cos()) if kind is nn.LSTM else state


@KINDS
@LAYERS
@pytest.mark.parametrize("given", [False, True])
def test_equals_torchs_layers_with_one_bias(kind, options, num_layers, given):
    stack = OneBias(kind, 3, 5, num_layers, **options)
    input = torch.randn(2, 7, 3)
    hx = states(kind, torch.randn(num_layers, 2, 5)) if given else None
    torch.testing.assert_close(stack(input, hx), twin(stack, kind, options)(input, hx))


@KINDS
@LAYERS
def test_initial_state_is_trained(kind, options, num_layers):
    stack = OneBias(kind, 3, 5, num_layers, learn_initial_state=True, **options)
    assert (stack.initial_state == 0).all()
    assert stack.initial_state.shape == (num_layers * (2 if kind is nn.LSTM else 1), 5)
    nn.init.normal_(stack.initial_state)
    input = torch.randn(2, 7, 3)
    rows = stack.initial_state.detach()[:, None].expand(-1, 2, -1).contiguous()
    hx = rows.chunk(2) if kind is nn.LSTM else rows
    output, _ = stack(input)
    torch.testing.assert_close(output, twin(stack, kind, options)(input, hx)[0])
    output.sum().backward()
    assert (stack.initial_state.grad != 0).all()


@KINDS
def test_a_given_state_comes_before_the_trained_one(kind, options):
    stack = OneBias(kind, 3, 5, learn_initial_state=True, **options)
    nn.init.normal_(stack.initial_state)
    hx = states(kind, torch.zeros(1, 2, 5))
    input = torch.randn(2, 7, 3)
    torch.testing.assert_close(stack(input, hx), twin(stack, kind, options)(input, hx))


def test_dropout_is_between_layers_and_in_training():
    stack = OneBias(nn.LSTM, 3, 5, num_layers=2, dropout=1.0)
    input = torch.randn(2, 7, 3)
    dropped, _ = stack(input)
    assert torch.equal(dropped[0], dropped[1])  # the second layer has seen nothing
    kept, _ = stack.eval()(input)
    assert not torch.equal(kept[0], kept[1])
