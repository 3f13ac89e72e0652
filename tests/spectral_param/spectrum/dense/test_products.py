import pytest
import torch

from spectral_param.spectrum.dense.gram import gram
from spectral_param.spectrum.dense.products import CLOSEST, FARTHEST, capped_by_products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (30, 30), (50, 20), (20, 50), (200, 200)])
@pytest.mark.parametrize("greatest", [0.5, 1.001, 1.2, FARTHEST])
@pytest.mark.parametrize("cap", [1e-3, 1.0, 1e3])
def test_singular_values_are_moved_to_the_cap_and_all_else_stays(dtype, shape, greatest, cap):
    k = min(shape)
    u, v = (torch.linalg.qr(torch.randn(3, n, k, dtype=torch.float64)).Q for n in shape)
    sigma = torch.rand(3, k, dtype=torch.float64) * greatest
    sigma[:, 0] = greatest
    sigma[:, 1:8] = torch.tensor([0, 1, 1 - 1e-5, 1 + 1e-5, 1 - 1e-3, 1 + 1e-3, 1e-6])[: max(k - 1, 0)].clamp_max(
        greatest
    )
    stack = (cap * u * sigma.unsqueeze(-2) @ v.mT).to(dtype)
    found = capped_by_products(stack, gram(stack), cap).double()
    expected = cap * u * sigma.clamp_max(1).unsqueeze(-2) @ v.mT
    assert torch.linalg.matrix_norm(found - expected, 2).max() < CLOSEST * cap
