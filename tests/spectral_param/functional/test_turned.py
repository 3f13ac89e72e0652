"""The change of a frozen base against the formula written out, reflector by reflector."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_param.functional.leading import leading_triplets, trailing_singular_values, trailing_vectors
from spectral_param.functional.turned import TurnedFactor, changed_product, thin_change, turn


def product(reflectors):
    """H(first) … H(last), one by one; a zero column is the identity."""
    q = torch.eye(len(reflectors), dtype=reflectors.dtype)
    for u in reflectors.unbind(1):
        if u.any():
            q = q @ (torch.eye(len(u), dtype=u.dtype) - 2 * torch.outer(u, u) / (u @ u))
    return q


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(
    p=st.integers(1, 9),
    q=st.integers(1, 9),
    m1=st.integers(0, 4),
    m2=st.integers(0, 4),
    data=st.data(),
    zero=st.booleans(),
)
def test_the_thin_change_is_the_formula_written_out(p, q, m1, m2, data, zero):
    r = data.draw(st.integers(0, min(p, q)))
    torch.manual_seed(p + 10 * q + 100 * m1)
    base, u, v, delta = drawn(p, q), drawn(p, m1), drawn(q, m2), drawn(r)
    if zero and m1:
        u[:, 0] = 0
    left, sigma, right = leading_triplets(base, r)
    thin_left, thin_right = thin_change(base, u, left, delta, right, v)
    expected = product(u) @ (base + left @ torch.diag(delta) @ right.mT) @ product(v).mT
    torch.testing.assert_close(base + thin_left @ thin_right.mT, expected, atol=1e-12, rtol=1e-12)
    rest = trailing_singular_values(base, left, sigma, right)
    known = torch.cat([sigma + delta, rest]).abs().sort(descending=True).values
    torch.testing.assert_close(known, torch.linalg.svdvals(expected), atol=1e-12, rtol=1e-12)


def test_gradients_of_all_that_is_trained_are_right_to_the_second_order():
    base = drawn(4, 5)
    left, _, right = leading_triplets(base, 2)
    trained = [drawn(4, 2), drawn(2), drawn(5, 2)]

    def weight(u, delta, v):
        thin_left, thin_right = thin_change(base, u, left, delta, right, v)
        return base + thin_left @ thin_right.mT

    inputs = [t.requires_grad_() for t in trained]
    assert torch.autograd.gradcheck(weight, inputs)
    assert torch.autograd.gradgradcheck(weight, inputs)


@pytest.mark.parametrize("plainly", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (0, 5)])
def test_the_product_is_that_of_the_summed_weight(shape, plainly):
    base, left, right, bias, x = drawn(4, 5), drawn(4, 3), drawn(5, 3), drawn(4), drawn(*shape)
    y = changed_product(x, base, left, right, bias, plainly=plainly)
    torch.testing.assert_close(y, x @ (base + left @ right.mT).mT + bias)


def test_the_product_of_stacked_blocks_is_that_of_the_summed_weight():
    base, left, right, x = drawn(6, 5), drawn(2, 3, 2), drawn(2, 5, 2), drawn(3, 4, 5)
    weight = base + (left @ right.mT).reshape(6, 5)
    torch.testing.assert_close(changed_product(x, base, left, right, None, plainly=False), x @ weight.mT)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
@pytest.mark.parametrize("rank", [0, 2, 4])
def test_leading_and_trailing_triplets_are_the_svd(shape, rank):
    w = drawn(*shape)
    u, s, v = leading_triplets(w, rank)
    more_u, more_v = trailing_vectors(w, u, s, v)
    sigma = torch.cat([s, trailing_singular_values(w, u, s, v)])
    left, right = torch.cat([u, more_u], 1), torch.cat([v, more_v], 1)
    torch.testing.assert_close(sigma, torch.linalg.svdvals(w))
    torch.testing.assert_close((left * sigma) @ right.mT, w)
    torch.testing.assert_close(left.mT @ left, torch.eye(4 if min(shape) == 4 else 5, dtype=w.dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_triplets_of_a_large_matrix_are_those_of_its_svd(dtype):
    w = torch.randn(600, 700, dtype=dtype)
    u, s, v = leading_triplets(w, 5)
    w, eps = w.double(), torch.finfo(dtype).eps
    torch.testing.assert_close(s, torch.linalg.svdvals(w)[:5])
    assert (w @ v - u * s).norm(dim=0).max() <= 64 * eps * s[0]
    assert (w.mT @ u - v * s).norm(dim=0).max() <= 64 * eps * s[0]


@pytest.mark.parametrize("shape", [(4, 6), (600, 520), (520, 600)])
def test_a_zero_matrix_and_one_of_low_rank_have_orthonormal_vectors(shape):
    p, q = shape
    for w in (torch.zeros(shape), torch.outer(torch.ones(p), torch.arange(q) / q)):
        u, s, v = leading_triplets(w, 4)
        torch.testing.assert_close(u.mT @ u, torch.eye(4, dtype=torch.float64))
        torch.testing.assert_close(v.mT @ v, torch.eye(4, dtype=torch.float64))
        torch.testing.assert_close((u * s) @ v.mT, w.double())


def test_a_turned_factor_is_its_basis_turned():
    reflectors, basis = drawn(5, 3), torch.linalg.qr(drawn(5, 5)).Q
    factor, dense = TurnedFactor(reflectors, basis), product(reflectors) @ basis
    x = drawn(5, 2)
    torch.testing.assert_close(factor.columns(3), dense[:, :3])
    torch.testing.assert_close(factor.apply(x), dense @ x)
    torch.testing.assert_close(factor.apply(x, transpose=True), dense.mT @ x)


def test_equal_pairs_turn_nothing():
    z, t = turn(drawn(6, 2).repeat_interleave(2, 1))
    torch.testing.assert_close(z @ t, torch.zeros(6, 6, dtype=z.dtype))
