"""The native scan takes the smallest numbers for zero, and leaves the caller's way with them as it was."""

import pytest
import torch

from spectral_param import Fixed
from spectral_param.nn import SpectralRNN


def keeps_small_numbers():
    return (torch.tensor([1e-40]) * 0.5).item() != 0


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("flushed", [False, True])
def test_small_states_are_zero_and_the_callers_way_is_given_back(flushed):
    torch.set_flush_denormal(flushed)
    try:
        rnn = SpectralRNN(1, 32, nonlinearity="relu", reflectors=4, sigma=Fixed(0.1))
        x = torch.zeros(60, 4, 1)
        x[0] = 1
        states, last = rnn(x)
        last.sum().backward()
        assert keeps_small_numbers() != flushed
    finally:
        torch.set_flush_denormal(False)
    assert states[states != 0].abs().min() >= torch.finfo(torch.float32).tiny
    assert (states[20] != 0).any()
