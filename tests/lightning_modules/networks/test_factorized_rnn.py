import pytest
import torch
from torch import nn

from lightning_modules.networks.factorized_rnn import FactorizedRNN


def test_recurrent_weight_has_its_singular_values_in_the_band():
    rnn = FactorizedRNN(3, 6, radius=0.2)
    nn.init.normal_(rnn.raw_sigma, std=3.0)
    values = torch.linalg.svdvals(rnn.recurrent_weight())
    expected = rnn.band(rnn.raw_sigma).sort(descending=True).values
    torch.testing.assert_close(values, expected)
    assert ((values - 1).abs() <= 0.2).all()


@pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
@pytest.mark.parametrize("given", [False, True])
def test_equals_torchs_layer(nonlinearity, given):
    rnn = FactorizedRNN(3, 6, nonlinearity=nonlinearity)
    nn.init.normal_(rnn.bias)
    reference = nn.RNN(3, 6, nonlinearity=nonlinearity, batch_first=True)
    reference.load_state_dict(
        {
            "weight_ih_l0": rnn.input_weight.detach(),
            "weight_hh_l0": rnn.recurrent_weight().detach(),
            "bias_ih_l0": rnn.bias.detach(),
            "bias_hh_l0": torch.zeros(6),
        }
    )
    input, hx = torch.randn(2, 7, 3), torch.randn(1, 2, 6) if given else None
    torch.testing.assert_close(rnn(input, hx), reference(input, hx))
