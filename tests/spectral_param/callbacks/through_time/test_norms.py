import pytest
import torch
from torch import nn

from spectral_param.callbacks.through_time.norms import norms_over_ranks, series, square, times_of
from tests.spectral_param.callbacks.small_runs import trainer


def test_times():
    assert times_of(1, 9) == [0]
    assert times_of(4, 9) == [0, 3, 6, 9]
    assert times_of((0, 9, 10, -1, -10, -11), 9) == [0, 9, None, 9, 0, None]


def test_series_by_state_and_layer():
    assert series("a", nn.RNN(1, 1, num_layers=2)) == ["a.h_l0", "a.h_l1"]
    assert series("a", nn.LSTM(1, 1)) == ["a.h", "a.c"]


def test_squares_hold_what_float32_cannot():
    assert square(torch.full((2,), 1e-30)).sqrt().item() == pytest.approx(2**0.5 * 1e-30)
    assert square(None).isnan()


def test_norms_of_one_process_are_its_own(tmp_path):
    norms = norms_over_ranks(trainer(tmp_path), {"a": torch.tensor([4.0, 9.0]), "b": torch.tensor(16.0)})
    assert {name: norm.tolist() for name, norm in norms.items()} == {"a": [2, 3], "b": 4}
