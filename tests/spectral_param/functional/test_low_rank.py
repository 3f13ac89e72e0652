import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import low_rank, ways
from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.frozen import FrozenProduct
from spectral_param.functional.reflectors import pack
from spectral_param.sizes import Sizes
from spectral_param.torch_state.modes import traced_or_transformed
from tests.reference import relative, svd_product

SHAPES = [(2, 2, 1, 1), (5, 5, 2, 3), (7, 4, 1, 2), (4, 7, 3, 1), (64, 48, 7, 20), (130, 130, 16, 16)]


def products(u, v, sizes):
    return ReflectorProduct(u, sizes.p, sizes.m1), ReflectorProduct(v, sizes.q, sizes.m2)


def low_rank_weight(u, sigma, v, sizes):
    u, v = products(u, v, sizes)
    return low_rank.low_rank_weight(u, sigma, v, plainly=traced_or_transformed())


def low_rank_factors(u, sigma, v, sizes):
    u, v = products(u, v, sizes)
    return low_rank.low_rank_factors(u, sigma, v, plainly=traced_or_transformed())


def packed_weight(u, sigma, v, sizes):
    u, v = products(u, v, sizes)
    return ways.build(ways.way_to_build(u, sigma, v, transformed=False), u, sigma, v)


def packed_product(x, u, sigma, v, sizes, bias=None):
    u, v = products(u, v, sizes)
    way = ways.way_to_apply(u, sigma, v, len(x), transformed=False)
    return ways.apply(way, x, u, sigma, v, (FrozenProduct(), FrozenProduct()), bias)


def factors(sizes, dtype=torch.float64):
    dense = torch.randn(sizes.p, sizes.m1, dtype=dtype), torch.randn(sizes.q, sizes.m2, dtype=dtype)
    sigma = torch.randn(sizes.k, dtype=dtype, requires_grad=True)
    return dense, [pack(dense[0]).requires_grad_(), sigma, pack(dense[1]).requires_grad_()]


@pytest.mark.parametrize("sizes", [Sizes(*shape) for shape in SHAPES])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-6)])
def test_weight_equals_reflectors_one_by_one(sizes, dtype, tolerance):
    (u, v), (packed_u, sigma, packed_v) = factors(sizes, dtype)
    w = low_rank_weight(packed_u, sigma, packed_v, sizes)
    assert relative(w, svd_product(u, sigma, v)) < tolerance
    left, right = low_rank_factors(packed_u, sigma, packed_v, sizes)
    diagonal = torch.zeros(sizes.p, sizes.q, dtype=dtype)
    diagonal.diagonal().copy_(sigma.detach())
    assert relative(diagonal - left @ right.mT, w) < tolerance


@pytest.mark.parametrize("sizes", [Sizes(*shape) for shape in SHAPES[:4]])
def test_gradients_of_both_orders(sizes):
    _, inputs = factors(sizes)
    for function in (low_rank_weight, low_rank_factors):
        assert gradcheck(lambda *f, function=function: function(*f, sizes), inputs)
        assert gradgradcheck(lambda *f, function=function: function(*f, sizes), inputs)


@pytest.mark.parametrize("shape", SHAPES[4:])
def test_gradients_in_float32_are_those_in_float64(shape):
    sizes = Sizes(*shape)
    _, exact = factors(sizes)
    near = [f.detach().float().requires_grad_() for f in exact]
    cotangent = torch.randn(sizes.p, sizes.q, dtype=torch.float64)
    want = torch.autograd.grad(packed_weight(*exact, sizes), exact, cotangent)
    got = torch.autograd.grad(packed_weight(*near, sizes), near, cotangent.float())
    for g, w in zip(got, want, strict=True):
        assert relative(g, w) < 1e-5


def test_only_what_needs_a_gradient_gets_one():
    sizes = Sizes(6, 5, 2, 2)
    _, (u, sigma, v) = factors(sizes)
    alone = low_rank_weight(u.detach(), sigma, v.detach(), sizes)
    (grad,) = torch.autograd.grad(alone.sin().sum(), sigma)
    together = torch.autograd.grad(low_rank_weight(u, sigma, v, sizes).sin().sum(), (u, sigma, v))
    torch.testing.assert_close(grad, together[1])


def test_blocks_beside_each_other():
    sizes = Sizes(5, 4, 1, 2)
    each = [factors(sizes)[1] for _ in range(3)]
    stacked = [torch.stack(parts) for parts in zip(*each, strict=True)]
    want = torch.stack([low_rank_weight(*one, sizes) for one in each])
    got = low_rank_weight(*stacked, sizes)
    torch.testing.assert_close(got, want)
    flat = [f for one in each for f in one]
    cotangent = torch.randn_like(got)
    expected = torch.autograd.grad(want, flat, cotangent)
    for a, e in zip(torch.autograd.grad(got, flat, cotangent), expected, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("exponent", [-15, 0, 15])
def test_zero_reflectors_and_lengths_of_any_size(exponent):
    sizes = Sizes(20, 20, 4, 4)
    (u, v), _ = factors(sizes, torch.float32)
    u[:, 1] = 0
    exact = svd_product(u, torch.ones(20), v)
    packed = [pack(u * 10.0**exponent).requires_grad_(), torch.ones(20), pack(v * 10.0**exponent).requires_grad_()]
    with torch.autograd.detect_anomaly(check_nan=True):
        w = low_rank_weight(*packed, sizes)
        grads = torch.autograd.grad(w.tril().square().sum(), (packed[0], packed[2]))
    assert relative(w, exact) < 2e-6
    assert (w.mT @ w - torch.eye(20)).abs().max() < 2e-6
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode calls it
def test_transforms_see_the_same_function(transform):
    sizes = Sizes(5, 4, 2, 1)
    _, (u, sigma, v) = factors(sizes)
    u, sigma, v = u.detach(), sigma.detach(), v.detach()

    def loss(u):
        return low_rank_weight(u, sigma, v, sizes).sin().sum()

    leaf = u.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(leaf), leaf)
    if transform == "grad":
        torch.testing.assert_close(torch.func.grad(loss)(u), want)
    elif transform == "vmap":
        got = torch.func.vmap(torch.func.grad(loss))(torch.stack([u, 2 * u]))
        torch.testing.assert_close(got, torch.stack([want, want / 2]))
    else:
        direction = torch.randn_like(u)
        _, slope = torch.func.jvp(loss, (u,), (direction,))
        torch.testing.assert_close(slope, (want * direction).sum())


@pytest.mark.parametrize("counts", [(0, 2), (2, 0), (1, 1), (3, 4)])
def test_product_is_that_with_the_weight(counts):
    sizes = Sizes(6, 4, *counts)
    _, (u, sigma, v) = factors(sizes)
    x, bias = torch.randn(5, 4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    want = x @ packed_weight(u, sigma, v, sizes).mT
    torch.testing.assert_close(packed_product(x, u, sigma, v, sizes), want)
    torch.testing.assert_close(packed_product(x, u, sigma, v, sizes, bias), want + bias)


@pytest.mark.parametrize("n", [64, 512])
def test_near_parallel_reflectors_stay_orthogonal(n):
    sizes = Sizes(n, n, 32, 32)
    u, v = (torch.randn(n, 1) + 1e-3 * torch.randn(n, 32) for _ in range(2))
    w = low_rank_weight(pack(u), torch.ones(n), pack(v), sizes)
    assert (w.mT @ w - torch.eye(n)).abs().max() < 2e-5
