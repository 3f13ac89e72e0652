import math

import numpy as np
import pytest
import torch

from spectral_param.spectrum.dense.tail import tail_of


def by_hand(sigma):
    """Clauset's recipe, one cut-off after the other."""
    x = np.sort(np.asarray(sigma, dtype=np.float64) ** 2)
    fits = []
    for start in sorted(set(x))[:-1]:
        tail = x[x >= start]
        alpha = 1 + len(tail) / np.log(tail / start).sum()
        distance = np.abs(1 - (tail / start) ** (1 - alpha) - np.arange(len(tail)) / len(tail)).max()
        fits.append((distance, alpha, start, len(tail)))
    return min(fits)


@pytest.mark.parametrize("exponent", [2.0, 3.5])
def test_the_exponent_of_a_drawn_power_law_is_found(exponent):
    uniform = torch.rand(3000, dtype=torch.float64)
    tail = tail_of(uniform ** (-0.5 / (exponent - 1)))
    assert tail.exponent == pytest.approx(exponent, rel=0.05)
    assert tail.error < 0.03


def test_the_fit_is_that_of_every_cut_off_by_hand():
    for sigma in (torch.rand(700).square(), torch.linalg.svdvals(torch.randn(40, 60)), torch.tensor([1.0, 1.0, 2.0])):
        tail = tail_of(sigma)
        distance, alpha, start, size = by_hand(sigma)
        assert tail == pytest.approx((alpha, distance, start, size))


@pytest.mark.parametrize("sigma", [[], [1.0], [2.0, 2.0], [0.0, 1.0], [math.nan, 1.0, 2.0], [math.inf, 1.0]])
def test_where_nothing_can_be_fitted_it_is_nan(sigma):
    assert math.isnan(tail_of(torch.tensor(sigma)).exponent)
