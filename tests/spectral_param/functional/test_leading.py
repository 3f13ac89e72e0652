"""The leading singular triplets by filtered subspace iteration."""

import pytest
import torch

from spectral_param.functional.leading import iterated_triplets

SPECTRA = {
    "flat": lambda k: torch.ones(k),
    "of a random matrix": lambda k: torch.linalg.svdvals(torch.randn(k, k)),
    "harmonic": lambda k: 1 / torch.arange(1, k + 1),
    "geometric": lambda k: 0.9 ** torch.arange(k),
    "steep": lambda k: torch.logspace(0, -12, k),
    "rank five": lambda k: (torch.arange(k) < 5).double(),
    "zero": torch.zeros,
}


def with_spectrum(values, p, q):
    u, v = (torch.linalg.qr(torch.randn(n, min(p, q), dtype=torch.float64)).Q for n in (p, q))
    return (u * values.double()) @ v.mT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(200, 200), (170, 260), (260, 170)], ids=str)
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_triplets_are_the_leading_ones_or_left_to_the_whole_svd(spectrum, shape, dtype):
    w = with_spectrum(SPECTRA[spectrum](min(shape)), *shape)
    found = iterated_triplets(w, 8, dtype)
    if found is None:
        assert spectrum in ("steep", "rank five", "zero", "geometric")
        return
    u, sigma, v = found
    eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    torch.testing.assert_close(sigma, torch.linalg.svdvals(w)[:8], rtol=0, atol=100 * eps * float(sigma[0]))
    for basis in (u, v):
        torch.testing.assert_close(basis.mT @ basis, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-13)
    assert (w @ v - u * sigma).norm() <= 300 * eps * sigma[0]
    assert (w.mT @ u - v * sigma).norm() <= 300 * eps * sigma[0]


def test_no_random_number_is_drawn_and_the_same_is_found_again():
    w, state = torch.randn(200, 200, dtype=torch.float64), torch.get_rng_state()
    first, again = (iterated_triplets(w, 4, torch.float32) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_small_matrices_and_many_triplets_are_left_to_the_whole_svd():
    assert iterated_triplets(torch.randn(100, 100, dtype=torch.float64), 4, torch.float64) is None
    assert iterated_triplets(torch.randn(200, 200, dtype=torch.float64), 40, torch.float64) is None
