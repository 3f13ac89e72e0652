import pytest
import torch

from spectral_param.functional.frozen import kept_columns, turned
from spectral_param.functional.packing import pack
from tests.reference import reflector_product


@pytest.mark.parametrize(("n", "m"), [(4, 1), (6, 3), (5, 5)])
def test_both_forms_are_the_reflectors_one_by_one(n, m):
    reflectors, x = torch.randn(n, m, dtype=torch.float64), torch.randn(3, n, dtype=torch.float64)
    exact, packed = reflector_product(reflectors), pack(reflectors)
    torch.testing.assert_close(kept_columns(packed, n, m, 2), exact[:, :2])
    torch.testing.assert_close(turned(x, packed, n, m), x @ exact)
    torch.testing.assert_close(turned(x, packed, n, m, transpose=True), x @ exact.mT)
    assert turned(x, None, n, 0) is x


def test_a_change_in_place_is_seen():
    packed, x = torch.randn(7), torch.eye(4)
    before = turned(x, packed, 4, 2), kept_columns(packed, 4, 2, 4)
    packed.add_(1)
    after = turned(x, packed, 4, 2), kept_columns(packed, 4, 2, 4)
    assert all((a - b).abs().max() > 0.01 for a, b in zip(before, after, strict=True))
    torch.testing.assert_close(*after, rtol=0, atol=1e-5)
