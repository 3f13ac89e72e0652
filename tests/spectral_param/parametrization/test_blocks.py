from torch import nn

from spectral_param import register_svd_parametrization
from spectral_param.parametrization.blocks import blocks_of, gate_names


def test_gates():
    attention = nn.MultiheadAttention(4, 2)
    assert gate_names(nn.GRU(2, 3, num_layers=2), "weight_ih_l1_reverse") == "rzn"
    assert gate_names(nn.LSTMCell(2, 3), "weight_hh") == "ifgo"
    assert gate_names(attention, "in_proj_weight") == "qkv"
    assert gate_names(nn.LSTM(2, 3, proj_size=2), "weight_hr_l0") == ""
    lstm = register_svd_parametrization(nn.LSTM(2, 3), "weight_hh_l0", chunks=4)
    assert gate_names(lstm, "weight_hh_l0") == "ifgo"


def test_there_is_a_letter_for_each_gate_that_registration_cuts():
    for kind, count in ((nn.LSTM, 4), (nn.LSTMCell, 4), (nn.GRU, 3), (nn.GRUCell, 3), (nn.RNN, 1)):
        for name, weight in kind(2, 3).named_parameters():
            if weight.dim() == 2:
                assert blocks_of(kind(2, 3), name) == count
                assert len(gate_names(kind(2, 3), name)) == (count if count > 1 else 0)
