import pytest
import torch

from spectral_param.spectrum.dense.gram import gram, is_below


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (3, 200, 200), (1, 1)])
def test_a_level_is_passed_from_below_and_not_from_above(shape):
    matrices = torch.randn(shape)
    greatest = torch.linalg.svdvals(matrices)[..., 0].max().item()
    assert is_below(gram(matrices), greatest * 1.001).all()
    assert not is_below(gram(matrices), greatest * 0.999).all()


def test_a_spectrum_without_any_gap_is_told_apart_from_one_that_is_a_thousandth_larger():
    matrix = torch.linalg.qr(torch.randn(300, 300)).Q
    assert is_below(gram(matrix), 1.0005)
    u, s, vh = torch.linalg.svd(matrix)
    s[7] = 1.001
    assert not is_below(gram(u * s @ vh), 1.0005)


def test_what_is_not_finite_is_below_nothing():
    assert not is_below(gram(torch.full((4, 4), torch.nan)), 1e30)
    assert not is_below(gram(torch.full((4, 4), torch.inf)), 1e30)
