import pytest
import torch
from torch import nn

from spectral_param.parametrization.blocks import matrices_of
from spectral_param.spectrum.dense import ceiling as ceiling_module
from spectral_param.spectrum.dense.ceiling import Ceiling


def ceiling_of(weight, cap, module=None, **options):
    return Ceiling(matrices_of(module or nn.Module(), weight), cap, **options)


def greatest(weight):
    return torch.linalg.svdvals(weight.double()).max().item()


@pytest.mark.parametrize("shape", [(40, 40), (20, 60), (60, 20), (3, 30, 20)])
def test_a_wandering_weight_is_below_the_edge_at_every_step(shape):
    weight = torch.randn(shape) / 10
    ceiling = ceiling_of(weight, 1.2)
    capped = 0
    for _ in range(60):
        weight += 0.02 * torch.randn(shape).sign() * torch.rand(1)
        capped += ceiling.hold_(weight)
        assert greatest(weight) <= 1.212
    assert 0 < capped < 60


def test_a_new_direction_beside_a_cluster_at_the_cap_is_not_missed():
    """Where a power iteration that has met the cluster sees nothing of it."""
    u, _, vh = torch.linalg.svd(torch.randn(60, 60))
    sigma = torch.full((60,), 0.3)
    sigma[:20] = 1.0
    weight = u * sigma @ vh
    ceiling = ceiling_of(weight, 1.0)
    assert not any(ceiling.hold_(weight) for _ in range(20))
    weight += 0.72 * torch.outer(u[:, 50], vh[50])
    assert ceiling.hold_(weight)
    expected = sigma.clone()
    expected[50] = 1.0
    torch.testing.assert_close(weight, u * expected @ vh, rtol=0, atol=1e-5)


def test_what_is_below_keeps_its_bits_and_what_is_above_is_moved_to_the_nearest_such_weight():
    weight = torch.randn(30, 50)
    u, s, vh = torch.linalg.svd(weight, full_matrices=False)
    before = weight.clone()
    assert not ceiling_of(weight, s[0].item() * 1.001).hold_(weight)
    assert torch.equal(weight, before)
    assert ceiling_of(weight, s[9].item()).hold_(weight)
    torch.testing.assert_close(weight, u * s.clamp_max(s[9]) @ vh, rtol=0, atol=1e-5)


def test_far_from_the_edge_a_step_costs_no_gram_matrix(monkeypatch):
    weight = torch.randn(50, 50) / 100
    ceiling = ceiling_of(weight, 10.0)
    ceiling.hold_(weight)
    monkeypatch.setattr(ceiling_module, "gram", lambda _: pytest.fail("a Gram matrix"))
    for _ in range(20):
        assert not ceiling.hold_(weight.add_(1e-3))


def test_a_weight_that_was_written_to_from_elsewhere_is_seen():
    weight = torch.randn(50, 50) / 100
    ceiling = ceiling_of(weight, 1.0)
    ceiling.hold_(weight)
    weight.copy_(5 * torch.eye(50))
    assert ceiling.hold_(weight)
    torch.testing.assert_close(weight, torch.eye(50))


def test_whether_it_is_capped_does_not_rest_on_what_was_before():
    """So that a run that goes on from a checkpoint goes on with the same bits."""
    weight = torch.randn(40, 40) / 10
    old = ceiling_of(weight, 2.0)
    for _ in range(40):
        weight += 0.02 * torch.randn(40, 40).sign()
        again = weight.clone()
        old.hold_(weight)
        ceiling_of(again, 2.0).hold_(again)
        assert torch.equal(again, weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("tolerance", [0.01, 1e-6])
def test_narrow_dtypes_are_below_the_edge_after_rounding_too(dtype, tolerance):
    weight = torch.randn(64, 64).to(dtype)
    assert ceiling_of(weight, 1.0, tolerance=tolerance).hold_(weight)
    assert 0.9 < greatest(weight) <= 1 + tolerance


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_numbers_whose_squares_do_not_fit_are_capped_in_double(scale):
    weight = torch.randn(20, 20) * scale
    assert ceiling_of(weight, scale).hold_(weight)
    assert greatest(weight / scale) == pytest.approx(1, abs=1e-4)


def test_a_weight_far_above_ends_below_the_edge():
    weight = torch.randn(40, 40) * 1e7
    assert ceiling_of(weight, 1.0).hold_(weight)
    assert greatest(weight) <= 1.01


def test_one_expert_alone_is_capped_and_one_that_is_not_finite_is_left():
    weight = torch.randn(4, 12, 8) / 100
    weight[1] *= 1000
    weight[2, 0, 0] = torch.nan
    before = weight.clone()
    assert ceiling_of(weight, 1.0).hold_(weight)
    for i in (0, 2, 3):
        assert torch.equal(weight[i].nan_to_num(), before[i].nan_to_num())
    assert greatest(weight[1]) == pytest.approx(1, abs=1e-5)


def test_zero_is_a_weight_like_another():
    weight = torch.zeros(6, 6)
    ceiling = ceiling_of(weight, 1.0)
    assert not ceiling.hold_(weight)
    assert not ceiling.hold_(weight.fill_(0.1))
    assert ceiling.hold_(weight.fill_(1.0))


def test_a_weight_that_moves_far_at_every_step_is_seldom_copied_until_it_stays(monkeypatch):
    weight = torch.randn(40, 40) / 40
    ceiling = ceiling_of(weight, 1.0)
    tried, power = [], ceiling._power
    monkeypatch.setattr(ceiling, "_power", lambda product: tried.append(None) or power(product))
    for _ in range(100):
        assert not ceiling.hold_(weight.copy_(torch.randn(40, 40) / 20))
    assert len(tried) < 10
    for _ in range(100):
        assert not ceiling.hold_(weight.mul_(0.9999))
    monkeypatch.setattr(ceiling_module, "gram", lambda _: pytest.fail("a Gram matrix"))
    for _ in range(100):
        assert not ceiling.hold_(weight.mul_(0.9999))


@pytest.mark.parametrize("shape", [(40, 40), (20, 60), (60, 20), (3, 30, 20)])
def test_where_products_are_fast_a_wandering_weight_is_below_the_edge_too(monkeypatch, shape):
    monkeypatch.setattr(ceiling_module, "multiplies_fast", lambda device: True)
    by_products = []
    capped = ceiling_module.capped_by_products
    monkeypatch.setattr(ceiling_module, "capped_by_products", lambda *args: by_products.append(None) or capped(*args))
    weight = torch.randn(shape) / 10
    ceiling, twin = ceiling_of(weight, 1.2), weight.clone()
    for _ in range(60):
        weight += 0.02 * torch.randn(shape).sign() * torch.rand(1)
        twin.copy_(weight)
        ceiling.hold_(weight)
        u, s, vh = torch.linalg.svd(twin, full_matrices=False)
        expected = u * torch.where(s[..., :1] > 1.212, s.clamp_max(1.2), s).unsqueeze(-2) @ vh
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-4)
        assert greatest(weight) <= 1.212
    assert by_products


@pytest.mark.parametrize(("scale", "tolerance"), [(1e7, 0.01), (1.0, 1e-5)])
def test_what_products_cannot_do_is_done_by_a_decomposition(monkeypatch, scale, tolerance):
    monkeypatch.setattr(ceiling_module, "multiplies_fast", lambda device: True)
    monkeypatch.setattr(ceiling_module, "capped_by_products", lambda *_: pytest.fail("products"))
    weight = scale * torch.randn(30, 30)
    assert ceiling_of(weight, 1.0, tolerance=tolerance).hold_(weight)
    assert greatest(weight) <= 1 + tolerance
