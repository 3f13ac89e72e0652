import pytest
import torch
from torch import nn

from spectral_param import (
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    spectral_table,
)
from spectral_param.bounds.norms import both_norms
from spectral_param.parametrization.blocks import blocks_of, gate_names, matrices_of


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


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 6, 3))
        self.positions = nn.Parameter(torch.randn(1, 6, 3))


def test_experts_have_a_matrix_each():
    experts = Experts()
    weight = experts.gate_up_proj.detach().clone()
    expected = torch.linalg.svdvals(weight)
    torch.testing.assert_close(singular_values(experts, "gate_up_proj"), expected)
    register_svd_parametrization(experts, "gate_up_proj")
    torch.testing.assert_close(experts.gate_up_proj, weight, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(singular_values(experts, "gate_up_proj"), expected)
    assert spectral_table(experts)[0]["blocks"] == 4
    torch.testing.assert_close(both_norms(experts, "gate_up_proj")[1].float(), weight.norm())
    assert singular_values(remove_svd_parametrization(experts), "gate_up_proj").shape == (4, 3)


def test_experts_are_not_cut_further():
    with pytest.raises(ValueError, match="chunks: expected 1 for experts, which have a matrix each, got 2"):
        register_svd_parametrization(Experts(), "gate_up_proj", chunks=2)


@pytest.mark.parametrize(
    ("module", "weight"),
    [
        (Experts(), torch.ones(1, 6, 3)),
        (nn.LayerNorm([2, 3, 4]), torch.ones(2, 3, 4)),
        (type("Scaled", (nn.RMSNorm,), {})([2, 3, 4]), torch.ones(2, 3, 4)),
        (Experts(), torch.ones(2, 2, 2, 2)),
    ],
)
def test_other_tables_are_no_matrices(module, weight):
    with pytest.raises(ValueError, match="tensor_name: expected two dimensions"):
        matrices_of(module, weight)
