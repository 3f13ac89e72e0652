import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import householder, householder_apply, householder_product
from tests.reference import reflector_product, relative

SHAPES = [(1, 1), (2, 1), (2, 2), (5, 3), (20, 20), (64, 64), (70, 66), (130, 100), (130, 130)]


@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_product_equals_reflectors_one_by_one(n, m):
    reflectors = torch.randn(n, m, dtype=torch.float64)
    exact = reflector_product(reflectors)
    for columns in {1, (n + 1) // 2, n}:
        torch.testing.assert_close(
            householder_product(reflectors, columns=columns), exact[:, :columns], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("transpose", [False, True])
def test_apply_equals_product(n, m, transpose):
    reflectors, x = torch.randn(n, m, dtype=torch.float64), torch.randn(n, 3, dtype=torch.float64)
    exact = reflector_product(reflectors)
    exact = exact.mT if transpose else exact
    torch.testing.assert_close(householder_apply(reflectors, x, transpose), exact @ x, rtol=0, atol=1e-12)


def test_batches_broadcast():
    reflectors = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    out = householder_apply(reflectors, x)
    assert out.shape == (2, 3, 5, 2)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(out[i, j], reflector_product(reflectors[i, j]) @ x[j], rtol=0, atol=1e-12)


def test_no_reflectors_is_identity():
    assert torch.equal(householder_product(torch.empty(3, 0)), torch.eye(3))


def test_an_empty_matrix_is_its_own_product():
    assert householder_product(torch.zeros(0, 0)).shape == (0, 0)
    assert householder_product(torch.zeros(2, 0, 0)).shape == (2, 0, 0)
    assert householder_apply(torch.zeros(0, 0), torch.zeros(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("lowered", [torch.bfloat16, torch.float16])
def test_products_are_in_full_precision_under_autocast(lowered):
    reflectors, x = torch.randn(70, 66, requires_grad=True), torch.randn(70, 3)
    u = householder_product(reflectors)
    with torch.autocast("cpu", lowered):
        product, applied = householder_product(reflectors), householder_apply(reflectors, x)
    assert torch.equal(product, u)
    torch.testing.assert_close(applied, u @ x, rtol=1e-5, atol=1e-5)
    applied.sum().backward()
    assert reflectors.grad.isfinite().all()


@pytest.fixture(params=[householder.BLOCKS, (2, 2, 2)], ids=["one block", "blocks of 2"])
def _blocks(request, monkeypatch):
    monkeypatch.setattr(householder, "BLOCKS", request.param)


def with_zero_column(reflectors):
    """A zero reflector in the second place: H jumps there, so finite differences must leave it alone."""
    return torch.cat([reflectors[:, :1], torch.zeros_like(reflectors[:, :1]), reflectors[:, 1:]], dim=1)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("transpose", [False, True])
def test_gradients_of_apply(transpose):
    reflectors = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)

    def apply(reflectors, x):
        return householder_apply(with_zero_column(reflectors), x, transpose)

    assert gradcheck(apply, (reflectors, x))
    assert gradgradcheck(apply, (reflectors, x))


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("m", [3, 5])
def test_gradients_of_product(m):
    reflectors = torch.randn(5, m, dtype=torch.float64, requires_grad=True)
    for columns in (2, 5):
        assert gradcheck(lambda r, c=columns: householder_product(r, c), (reflectors,))
        assert gradgradcheck(lambda r, c=columns: householder_product(r, c), (reflectors,))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_gradient_of_a_zero_reflector_is_zero():
    reflectors = torch.randn(6, 4)
    reflectors[:, 2] = 0
    reflectors.requires_grad_()
    with torch.autograd.detect_anomaly(check_nan=True):
        (grad,) = torch.autograd.grad(householder_product(reflectors).sin().sum(), reflectors)
    assert grad[:, 2].abs().max() == 0
    assert grad[:, :2].abs().max() > 0


def test_length_of_a_single_entry_has_no_gradient():
    reflectors = torch.randn(4, 4)
    reflectors[3, 3] = 1e-6
    reflectors.requires_grad_()
    (grad,) = torch.autograd.grad(householder_product(reflectors).sin().sum(), reflectors)
    assert grad[3, 3] == 0


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    share=st.floats(0, 1),
    exponent=st.integers(-15, 15),
    zero=st.booleans(),
    repeat=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_orthogonal_at_any_scale(n, share, exponent, zero, repeat, seed):
    m = max(1, round(share * n))
    generator = torch.Generator().manual_seed(seed)
    reflectors = torch.randn(n, m, generator=generator)
    if repeat:
        reflectors[:, -1] = reflectors[:, 0]
    if zero:
        reflectors[:, m // 2] = 0
    scaled = (reflectors * 10.0**exponent).requires_grad_()
    product = householder_product(scaled)
    assert (product.mT @ product - torch.eye(n)).abs().max() < 1e-5
    assert relative(product, reflector_product(reflectors)) < 1e-5
    torch.testing.assert_close(product, householder_product(-scaled), rtol=0, atol=1e-6)
    (grad,) = torch.autograd.grad(product.square().tril().sum(), scaled)
    assert grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode calls it
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "forward AD", "functionalize"])
def test_transforms_see_the_same_function(transform):
    reflectors, x = torch.randn(3, 5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    direction = torch.randn(5, 3, dtype=torch.float64)
    if transform == "vmap":
        got = torch.func.vmap(lambda r: householder_apply(r, x))(reflectors)
        want = torch.stack([householder_apply(r, x) for r in reflectors])
    elif transform == "grad":
        got = torch.func.grad(lambda r: householder_apply(r, x).sin().sum())(reflectors[0])
        leaf = reflectors[0].clone().requires_grad_()
        (want,) = torch.autograd.grad(householder_apply(leaf, x).sin().sum(), leaf)
    elif transform == "functionalize":
        got = torch.func.functionalize(householder_apply)(reflectors[0], x)
        want = householder_apply(reflectors[0], x)
    else:
        eps = 1e-6
        ahead, behind = (householder_apply(reflectors[0] + s * eps * direction, x) for s in (1, -1))
        want = (ahead - behind) / (2 * eps)
        if transform == "jvp":
            _, got = torch.func.jvp(lambda r: householder_apply(r, x), (reflectors[0],), (direction,))
        else:
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(reflectors[0], direction)
                got = torch.autograd.forward_ad.unpack_dual(householder_apply(dual, x)).tangent
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: householder_product(torch.ones(2, 3)), ValueError, "reflectors"),
        (lambda: householder_product(torch.ones(3)), ValueError, "reflectors"),
        (lambda: householder_product(torch.ones(3, 2, dtype=torch.int64)), TypeError, "reflectors"),
        (lambda: householder_product(torch.ones(3, 2, dtype=torch.bfloat16)), TypeError, "reflectors"),
        (lambda: householder_product(torch.ones(3, 2), columns=0), ValueError, "columns"),
        (lambda: householder_product(torch.ones(3, 2), columns=4), ValueError, "columns"),
        (lambda: householder_product(torch.ones(0, 0), columns=0), ValueError, "columns"),
        (lambda: householder_apply(torch.ones(3, 2), torch.ones(2, 1)), ValueError, "x"),
        (lambda: householder_apply(torch.ones(3, 5, 2), torch.ones(4, 5, 2)), ValueError, "x"),
        (lambda: householder_apply(torch.ones(3, 2), torch.ones(3, 1).double()), TypeError, "x"),
    ],
)
def test_wrong_input_is_named(call, error, word):
    with pytest.raises(error, match=f"^{word}: expected"):
        call()
