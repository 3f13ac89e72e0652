import numpy as np
import pytest
import torch

from spectral_param.callbacks import spectral_statistics


def test_against_numpy_on_a_matrix():
    matrix = np.random.default_rng(0).normal(size=(7, 5))
    sigma = np.linalg.svd(matrix, compute_uv=False)
    share = sigma / sigma.sum()
    expected = {
        "sigma_max": np.linalg.norm(matrix, 2),
        "sigma_min": np.linalg.norm(matrix, -2),
        "sigma_mean": np.linalg.norm(matrix, "nuc") / 5,
        "spectral_margin": max(abs(sigma - 2)),
        "condition_number": np.linalg.cond(matrix),
        "effective_rank": np.prod(share**-share),
    }
    assert spectral_statistics(torch.tensor(sigma), center=2.0) == pytest.approx(expected)


def test_blocks():
    numbers = spectral_statistics(torch.tensor([[1.0, 1.0], [4.0, 2.0]]))
    assert numbers["condition_number"] == 2
    assert numbers["sigma_max"] == 4
    assert numbers["effective_rank"] == pytest.approx((2 + 3 / 4 ** (1 / 3)) / 2)


def test_equal_values_have_full_rank_and_a_single_one_has_rank_one():
    assert spectral_statistics(torch.ones(9))["effective_rank"] == pytest.approx(9)
    assert spectral_statistics(torch.tensor([3.0, 0.0, 0.0]))["effective_rank"] == pytest.approx(1)


@pytest.mark.parametrize("sigma", [[1.0, 0.0], [0.0, 0.0]])
def test_a_singular_matrix_has_an_infinite_condition_number(sigma):
    assert spectral_statistics(torch.tensor(sigma))["condition_number"] == float("inf")


@pytest.mark.parametrize("sigma", [[1.0, np.nan], [np.nan, np.nan], [[1.0, 1.0], [np.nan, 0.5]]])
def test_what_is_not_a_number_is_not_dropped(sigma):
    assert all(np.isnan(number) for number in spectral_statistics(torch.tensor(sigma)).values())
