import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization
from tests.versions import muon as needs_muon


def lstm():
    return register_svd_parametrization(nn.LSTM(3, 4), "weight_hh_l0", chunks=4)


def step(model, optimizer):
    model(torch.ones(2, 1, 3))[0].sum().backward()
    optimizer.step()


@needs_muon
def test_muon_is_told_once_that_chunks_are_no_matrix():
    model = lstm()
    muon = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2])
    with pytest.warns(UserWarning, match="Muon holds factors of LSTM.weight_hh_l0, .* no matrix; .* another") as told:
        step(model, muon)
    assert len(told) == 1
    step(model, muon)


@needs_muon
def test_muon_without_factors_is_told_of_nothing():
    model = lstm()
    step(model, torch.optim.Muon([p for name, p in model.named_parameters() if p.ndim == 2 and "param" not in name]))


class MuonWithOther(torch.optim.SGD):
    """Has a group that it treats as another optimizer would."""


def test_a_group_that_is_not_for_muon_may_hold_them():
    model = lstm()
    step(model, MuonWithOther([{"params": list(model.parameters()), "use_muon": False}], lr=0.1))
