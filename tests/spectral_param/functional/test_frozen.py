import pytest
import torch

from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.frozen import FrozenProduct
from spectral_param.functional.reflectors import pack
from tests.reference import reflector_product


@pytest.mark.parametrize(("n", "m"), [(4, 1), (6, 3), (5, 5)])
def test_both_forms_are_the_reflectors_one_by_one(n, m):
    reflectors, x = torch.randn(n, m, dtype=torch.float64), torch.randn(3, n, dtype=torch.float64)
    exact, packed = reflector_product(reflectors), pack(reflectors)
    u, kept = ReflectorProduct(packed, n, m), FrozenProduct()
    torch.testing.assert_close(kept.columns(u, 2), exact[:, :2])
    torch.testing.assert_close(kept.rotate(x, u), x @ exact)
    torch.testing.assert_close(kept.rotate(x, u, transpose=True), x @ exact.mT)
    assert kept.rotate(x, ReflectorProduct(torch.empty(0), n, 0)) is x


def test_a_change_in_place_is_seen():
    packed, x = torch.randn(7), torch.eye(4)
    u, kept = ReflectorProduct(packed, 4, 2), FrozenProduct()
    before = kept.rotate(x, u), kept.columns(u, 4)
    packed.add_(1)
    after = kept.rotate(x, u), kept.columns(u, 4)
    assert all((a - b).abs().max() > 0.01 for a, b in zip(before, after, strict=True))
    torch.testing.assert_close(*after, rtol=0, atol=1e-5)


def test_a_write_through_data_is_seen_too():
    """Which moves no version counter."""
    packed, x = torch.randn(7), torch.eye(4)
    u, kept = ReflectorProduct(packed, 4, 2), FrozenProduct()
    assert kept.columns(u, 4) is kept.columns(u, 4)
    kept.rotate(x, u)
    packed.data.copy_(torch.randn(7))
    exact = ReflectorProduct(packed.clone(), 4, 2).columns(4)
    torch.testing.assert_close(kept.columns(u, 4), exact, rtol=0, atol=1e-5)
    torch.testing.assert_close(kept.rotate(x, u), exact, rtol=0, atol=1e-5)


def test_what_was_built_in_inference_mode_serves_training():
    u, kept, x = ReflectorProduct(torch.randn(7), 4, 2), FrozenProduct(), torch.randn(3, 4)
    with torch.inference_mode():
        kept.rotate(x, u)
        kept.columns(u, 4)
    x.requires_grad_()
    kept.rotate(x, u).sum().backward()
    (x @ kept.columns(u, 4)).sum().backward()
    torch.testing.assert_close(x.grad, 2 * kept.columns(u, 4).sum(1).expand(3, 4), rtol=1e-5, atol=1e-5)
