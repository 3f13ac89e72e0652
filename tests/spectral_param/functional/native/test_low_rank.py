import shutil

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from spectral_param import Band, register_svd_parametrization
from spectral_param.functional import native, ways
from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.native import library
from spectral_param.functional.reflectors import unpack
from spectral_param.sizes import Sizes, packed_size
from tests.reference import relative, svd_product

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


def low_rank_weight(u, sigma, v, sizes):
    u, v = ReflectorProduct(u, sizes.p, sizes.m1), ReflectorProduct(v, sizes.q, sizes.m2)
    return ways.build(ways.way_to_build(u, sigma, v, transformed=False), u, sigma, v)


SIZES = [
    Sizes(16, 16, 1, 1),
    Sizes(32, 32, 16, 16),
    Sizes(128, 128, 16, 16),
    Sizes(128, 128, 32, 32),
    Sizes(48, 16, 3, 8),
    Sizes(16, 112, 8, 1),
    Sizes(256, 208, 20, 100),
]


def factors(sizes: Sizes, *lead: int, dtype=torch.float32):
    p, q, m1, m2 = sizes
    shapes = (packed_size(p, m1), sizes.k, packed_size(q, m2))
    return [torch.randn(*lead, size, dtype=dtype).requires_grad_() for size in shapes]


@pytest.fixture
def calls(monkeypatch):
    """What is built natively."""
    seen, weight = [], native.weight
    monkeypatch.setattr(native, "weight", lambda *args: (seen.append(args[3]), weight(*args))[1])
    return seen


@pytest.mark.usefixtures("_native")
def test_a_weight_is_built_once_for_many_reads_in_evaluation(calls):
    layer = register_svd_parametrization(nn.Linear(64, 64), reflectors=4, sigma=Band(0.1), init="orthogonal").eval()
    with torch.no_grad():
        first = layer(torch.eye(64))
        assert torch.equal(layer(torch.eye(64)), first)
    assert len(calls) == 1


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("lead", [(), (3,), (2, 1)], ids=str)
def test_equal_to_float64_with_gradients(sizes, lead, calls):
    near = factors(sizes, *lead)
    exact = [t.detach().double().requires_grad_() for t in near]
    cotangent = torch.randn(*lead, sizes.p, sizes.q)
    found = []
    for tensors in (near, exact):
        w = low_rank_weight(*tensors, sizes)
        found.append([w, *torch.autograd.grad(w, tensors, cotangent.to(w.dtype))])
    assert calls == [sizes]
    for got, want in zip(*found, strict=True):
        assert got.shape == want.shape
        assert relative(got, want) < 2e-6


@pytest.mark.usefixtures("_native")
def test_equal_to_reflectors_one_by_one():
    sizes = Sizes(32, 16, 2, 5)
    u, sigma, v = factors(sizes)
    w = low_rank_weight(u, sigma, v, sizes)
    assert relative(w, svd_product(unpack(u, 32, 2), sigma, unpack(v, 16, 5))) < 1e-6
    torch.testing.assert_close(torch.linalg.svdvals(w), sigma.abs().sort(descending=True).values)


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e10, 1e30])
def test_any_length_of_reflectors(scale):
    sizes = Sizes(32, 32, 4, 4)
    u, sigma, v = factors(sizes)
    with torch.no_grad():
        first, exact = low_rank_weight(u * scale, sigma, v / scale, sizes), low_rank_weight(u, sigma, v, sizes)
    torch.testing.assert_close(first, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_native")
def test_a_zero_reflector_is_the_identity_and_has_no_gradient():
    sizes = Sizes(16, 16, 2, 1)
    _, sigma, v = factors(sizes)
    u = torch.zeros(packed_size(16, 2), requires_grad=True)
    w = low_rank_weight(u, sigma, v, sizes)
    assert relative(w, svd_product(torch.zeros(16, 2), sigma, unpack(v, 16, 1))) < 1e-6
    w.square().sum().backward()
    assert not u.grad.any()


@pytest.mark.usefixtures("_native")
def test_not_a_number_is_handed_on():
    sizes = Sizes(16, 16, 1, 1)
    u, sigma, v = factors(sizes)
    with torch.no_grad():
        u[3] = torch.nan
    assert low_rank_weight(u, sigma, v, sizes).isnan().any()


@pytest.mark.usefixtures("_native")
def test_only_what_it_is_made_for(calls):
    for sizes, dtype in ((Sizes(24, 16, 1, 1), torch.float32), (Sizes(16, 16, 1, 1), torch.float64)):
        low_rank_weight(*factors(sizes, dtype=dtype), sizes)
    low_rank_weight(*factors(Sizes(272, 16, 1, 1)), Sizes(272, 16, 1, 1))
    assert not calls
    layer = register_svd_parametrization(
        nn.Linear(32, 32), reflectors=4, sigma=Band(0.1), init="orthogonal", matrix_free=False
    )
    layer(torch.randn(2, 32)).sum().backward()
    assert len(calls) == 1


@pytest.mark.usefixtures("_native")
def test_double_backward():
    sizes = Sizes(16, 32, 3, 2)
    tensors = factors(sizes)
    seconds = []
    for _ in range(2):
        w = low_rank_weight(*tensors, sizes)
        grads = torch.autograd.grad(w.pow(3).sum(), tensors, create_graph=True)
        seconds.append(torch.autograd.grad(sum(g.square().sum() for g in grads), tensors))
        library.loaded.clear()
    for got, want in zip(*seconds, strict=True):
        assert relative(got, want) < 1e-4


@pytest.mark.usefixtures("_native")
def test_a_gradient_that_is_not_contiguous_and_factors_that_are_not():
    sizes = Sizes(16, 16, 2, 2)
    tensors = [torch.stack([t, t], -1).detach()[..., 0].requires_grad_() for t in factors(sizes)]
    cotangent = torch.randn(16, 16)
    w = low_rank_weight(*tensors, sizes)
    got = torch.autograd.grad(w.mT, tensors, cotangent)
    library.loaded.clear()
    want = torch.autograd.grad(low_rank_weight(*tensors, sizes).mT, tensors, cotangent)
    for a, b in zip(got, want, strict=True):
        assert relative(a, b) < 1e-6


@pytest.mark.usefixtures("_native")
def test_what_looks_on_sees_operations_of_torch(calls):
    sizes = Sizes(16, 16, 2, 2)
    u, sigma, v = factors(sizes)
    traced = make_fx(lambda s: low_rank_weight(u, s, v, sizes))(sigma.detach())
    assert not calls
    torch.testing.assert_close(traced(sigma.detach()), low_rank_weight(u, sigma, v, sizes).detach())


@pytest.mark.usefixtures("_native")
def test_shapes_are_looked_at_before_memory():
    sizes = Sizes(16, 16, 2, 2)
    u, sigma, v = factors(sizes)
    with pytest.raises(ValueError, match=r"u: expected shape \(3, 31\), got \(31,\)"):
        low_rank_weight(u, sigma.expand(3, 16), v.expand(3, 31), sizes)


@pytest.mark.usefixtures("_native")
@pytest.mark.parametrize("cotangent", [torch._efficientzerotensor((16, 16)), torch._neg_view(torch.ones(16, 16))])
def test_gradients_that_are_not_what_lies_in_memory(cotangent):
    sizes = Sizes(16, 16, 2, 2)
    tensors = factors(sizes)
    got = torch.autograd.grad(low_rank_weight(*tensors, sizes), tensors, cotangent)
    library.loaded.clear()
    want = torch.autograd.grad(low_rank_weight(*tensors, sizes), tensors, cotangent + torch.zeros(16, 16))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
