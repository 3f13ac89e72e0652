import copy

import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization
from spectral_param.functional import factorization
from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.reflectors import pack
from tests.reference import svd_product


def product_of(reflectors, like):
    """A side, the identity where there are no reflectors."""
    n = like if reflectors is None else reflectors.shape[0]
    return (
        ReflectorProduct(torch.empty(0), n, 0)
        if reflectors is None
        else ReflectorProduct(pack(reflectors), *reflectors.shape)
    )


def svd_weight(u, sigma, v, p, q):
    return factorization.svd_weight(product_of(u, p), sigma, product_of(v, q), plainly=False)


SHAPES = [(1, 1), (1, 5), (5, 1), (3, 3), (4, 7), (7, 4), (64, 48), (48, 64)]


@pytest.mark.parametrize(("p", "q"), SHAPES)
def test_weight_equals_the_product_written_out(p, q):
    k = min(p, q)
    counts = range(1, k + 1) if k < 8 else (1, 2, 7, 31, k - 1, k)
    for m1 in counts:
        for m2 in counts:
            u, v = torch.randn(p, m1, dtype=torch.float64), torch.randn(q, m2, dtype=torch.float64)
            sigma = torch.randn(k, dtype=torch.float64)
            torch.testing.assert_close(svd_weight(u, sigma, v, p, q), svd_product(u, sigma, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("p", "q"), [(4, 4), (6, 4), (4, 6)])
def test_a_missing_side_is_the_identity(p, q):
    sigma = torch.randn(4, dtype=torch.float64)
    reflectors = torch.randn(p, 2, dtype=torch.float64), torch.randn(q, 2, dtype=torch.float64)
    for u, v in (
        (reflectors[0], None),
        (None, reflectors[1]),
    ):
        plain_u = torch.zeros(p, 0) if u is None else u
        plain_v = torch.zeros(q, 0) if v is None else v
        torch.testing.assert_close(svd_weight(u, sigma, v, p, q), svd_product(plain_u, sigma, plain_v))


@pytest.mark.parametrize(("p", "q"), [(5, 5), (6, 4), (4, 6)])
def test_gradients(p, q):
    k = min(p, q)
    u = torch.randn(p, k - 1, dtype=torch.float64, requires_grad=True)
    v = torch.randn(q, k - 1, dtype=torch.float64, requires_grad=True)
    sigma = torch.randn(k, dtype=torch.float64, requires_grad=True)

    def weight(u, sigma, v):
        zero = torch.zeros_like(u[:, :1])  # a zero reflector among the others
        return svd_weight(torch.cat([u[:, :1], zero, u[:, 1:]], 1), sigma, v, p, q)

    assert torch.autograd.gradcheck(weight, (u, sigma, v))
    assert torch.autograd.gradgradcheck(weight, (u, sigma, v))


def test_a_weight_lies_row_by_row_in_memory_without_a_side_too():
    sigma, reflectors = torch.randn(4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64)
    for u, v in ((None, reflectors), (reflectors, None), (reflectors, reflectors)):
        p, q = (4 if side is None else 6 for side in (u, v))
        assert svd_weight(u, sigma, v, p, q).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("size", [2, 3, 4, 7, 16, 33, 64])  # in a 1×1 matrix nothing stands beside the sign
def test_small_noise_on_all_numbers_moves_the_weight_by_as_much(size, chunks, dtype):
    signs = set()
    for turn in (1, -1, 1, -1):
        blocks = torch.linalg.qr(torch.randn(chunks, size, size, dtype=dtype))[0]
        blocks[..., 0] *= turn
        signs |= set(torch.linalg.det(blocks).round().tolist())
        layer = nn.Linear(size, size * chunks, bias=False, dtype=dtype)
        layer.weight.data.copy_(blocks.flatten(0, 1))
        register_svd_parametrization(layer, chunks=chunks)
        before = layer.weight.detach()
        torch.testing.assert_close(before, blocks.flatten(0, 1), rtol=0, atol=2e-6)
        for noise in (1e-7, 1e-6, 1e-5):
            noisy = copy.deepcopy(layer)
            with torch.no_grad():
                for parameter in noisy.parameters():
                    parameter.add_(noise * torch.randn_like(parameter))
            rounding = 100 * torch.finfo(dtype).eps
            assert torch.linalg.matrix_norm(noisy.weight - before, 2) <= 10 * size * noise + rounding
    assert signs == {-1.0, 1.0}
