import pytest
import torch

from spectral_param.spectrum.dense.krylov import leading_svd


@pytest.mark.parametrize("shape", [(300, 700), (700, 300), (100, 900)])
@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_leading_singular_values_are_within_a_hundredth_from_below(shape, decay):
    u, s, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    matrix = u * s * torch.arange(1, len(s) + 1) ** -decay @ vh
    truth = torch.linalg.svdvals(matrix)[:10]
    left, sigma, right = leading_svd(matrix, 10)
    assert (sigma <= truth * (1 + 1e-5)).all()
    assert (sigma >= truth * 0.99).all()
    torch.testing.assert_close(left.mT @ left, torch.eye(10), rtol=0, atol=1e-5)
    torch.testing.assert_close((left.mT @ matrix @ right.mT).diagonal(), sigma)


def test_the_same_matrix_gives_the_same_numbers():
    matrix = torch.randn(400, 400)
    state = torch.get_rng_state()
    assert torch.equal(leading_svd(matrix, 3)[1], leading_svd(matrix, 3)[1])
    assert torch.equal(state, torch.get_rng_state())


def test_numbers_near_the_ends_of_float32_are_no_matter():
    matrix = torch.randn(300, 300, dtype=torch.float64)
    truth = torch.linalg.svdvals(matrix)[:2]
    for scale in (1e-36, 1e35):
        found = leading_svd((matrix * scale).float(), 2)[1].double() / scale
        torch.testing.assert_close(found, truth, rtol=0.01, atol=0)


def test_what_is_not_finite_is_nan_and_what_is_small_is_exact():
    assert leading_svd(torch.full((300, 300), torch.inf), 2)[1].isnan().all()
    matrix = torch.randn(5, 3)
    torch.testing.assert_close(leading_svd(matrix, 9)[1], torch.linalg.svdvals(matrix))
    assert torch.equal(leading_svd(torch.zeros(300, 300), 2)[1], torch.zeros(2))
    with pytest.raises(ValueError, match="k: expected a positive number, got 0"):
        leading_svd(matrix, 0)
