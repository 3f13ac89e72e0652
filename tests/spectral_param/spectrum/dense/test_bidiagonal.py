import pytest
import torch

from spectral_param.spectrum.dense.bidiagonal import greatest_singular_value


def with_sigma(sigma, p, q):
    k = min(p, q)
    u, v = (torch.linalg.qr(torch.randn(n, k, dtype=torch.float64)).Q for n in (p, q))
    return (u * sigma.double() @ v.mT).to(sigma.dtype)


SPECTRA = {
    "spread": lambda k: torch.rand(k),
    "close": lambda k: torch.linspace(0.9, 1, k),
    "equal": torch.ones,
    "falling": lambda k: torch.logspace(0, -6, k),
    "half": lambda k: (torch.arange(k) < k // 2).float(),
    "one": lambda k: (torch.arange(k) < 1).float(),
    "two": lambda k: (torch.arange(k) < 2).float() - 0.3 * (torch.arange(k) == 1),
    "zero": torch.zeros,
}


@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("shape", [(130, 130), (140, 300), (300, 140), (5, 400), (128, 128)])
@pytest.mark.parametrize("scale", [1, 1e-18, 1e18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_found_from_below_to_a_hundredth(kind, shape, scale, dtype):
    matrix = with_sigma(scale * SPECTRA[kind](min(shape)).to(dtype), *shape)
    truth = torch.linalg.svdvals(matrix.double())[0].item()
    size = torch.linalg.vector_norm(matrix, dtype=torch.float64).item()
    found = greatest_singular_value(matrix, size)
    assert 0.99 * truth <= found <= truth * (1 + 1e-5)
    assert found == greatest_singular_value(matrix, size)
