import pytest
import torch

from spectral_param.functional.reflectors import pack, unpack
from spectral_param.sizes import packed_size


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 1), (4, 4), (7, 3), (5, 0)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_round_trip_keeps_the_lower_trapezoid(n, m, batch):
    dense = torch.randn(*batch, n, m)
    packed = pack(dense)
    assert packed.shape == (*batch, packed_size(n, m))
    assert packed.is_contiguous()
    assert torch.equal(unpack(packed, n, m), dense.tril())


def test_gradient_of_unpack_is_pack():
    packed = torch.randn(packed_size(5, 3), requires_grad=True)
    grad = torch.randn(5, 3)
    unpack(packed, 5, 3).backward(grad)
    assert torch.equal(packed.grad, pack(grad))


@pytest.mark.parametrize(("n", "m"), [(6, 2), (6, 6), (9, 5)])
def test_size_is_the_papers_count(n, m):
    assert packed_size(n, m) == sum(n - j for j in range(m))
