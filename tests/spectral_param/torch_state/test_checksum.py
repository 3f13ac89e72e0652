import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from spectral_param import register_svd_parametrization, svd_parametrizations
from spectral_param.torch_state.checksum import checksum


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64, 128, 512])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_change_of_all_entries_is_seen(n, dtype):
    x = torch.randn(n, n).to(dtype)
    before = checksum(x)
    assert before == checksum(x.clone())
    for changed in (-x, 2 * x, x / 2, x + 1):
        assert checksum(changed) != before


@pytest.mark.parametrize("columns", [slice(0, 1), slice(1, 2), slice(1, None, 2), slice(0, None, 2), slice(0, 64)])
@pytest.mark.parametrize("n", [64, 122, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_signs_of_columns_or_rows_that_change_are_seen(n, dtype, columns):
    x = torch.randn(n, n, dtype=dtype)
    before = checksum(x)
    for part in (x[:, columns], x[columns]):
        part.neg_()
        assert checksum(x) != before
        part.neg_()
        assert checksum(x) == before


@given(st.integers(2, 300), st.data())
def test_two_words_that_change_are_seen(n, data):
    i, j = (data.draw(st.integers(0, n - 1)) for _ in range(2))
    x = torch.randn(n, dtype=torch.float64)
    before = checksum(x)
    swapped, turned = x.clone(), x.clone()
    swapped[[i, j]] = x[[j, i]]
    turned[[i, j]] *= -1
    assert checksum(turned) != before
    assert (checksum(swapped) == before) == (i == j)


def test_rows_that_change_places_are_seen():
    for columns in (122, 128, 512):
        x = torch.randn(64, columns)
        before = checksum(x)
        assert all(checksum(x[[*range(1, k + 1), 0, *range(k + 1, 64)]]) != before for k in range(1, 64))


def test_a_kept_weight_sees_signs_written_through_numpy():
    layer = register_svd_parametrization(nn.Linear(256, 256, bias=False)).eval()
    x = torch.randn(2, 256)
    with torch.no_grad():
        before = layer(x)
        layer.parametrizations.weight.original1.detach().numpy()[1::2] *= -1
        assert (layer(x) - before).abs().max() > 0.1


def test_readings_of_a_frozen_base_see_signs_written_through_data():
    layer = nn.Linear(128, 128, dtype=torch.float64).requires_grad_(False)
    register_svd_parametrization(layer, base="frozen", reflectors=2)
    [(_, p)] = svd_parametrizations(layer)
    assert p.svd[1].shape == (128,)
    p.factors[-1].data.neg_()
    with pytest.raises(ValueError, match="its frozen base was written to in place"):
        _ = p.svd
