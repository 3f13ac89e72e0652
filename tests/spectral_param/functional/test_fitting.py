import pytest
import torch

from spectral_param.functional import householder_product
from spectral_param.functional.fitting import draw, fit, haar_reflectors, householder_from_orthogonal
from tests.reference import reflector_product, relative, svd_product


def orthogonal(n, determinant=None):
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q
    if determinant is not None and torch.linalg.det(q).sign() != determinant:
        q[:, 0] *= -1
    return q


def with_spectrum(sigma):
    n = len(sigma)
    return orthogonal(n) @ torch.diag(torch.as_tensor(sigma, dtype=torch.float64)) @ orthogonal(n)


ZOO = {
    "random": lambda: torch.randn(24, 24, dtype=torch.float64),
    "orthogonal, det 1": lambda: orthogonal(24, 1),
    "orthogonal, det -1": lambda: orthogonal(24, -1),
    "identity": lambda: torch.eye(9, dtype=torch.float64),
    "minus identity": lambda: -torch.eye(9, dtype=torch.float64),
    "permutation": lambda: torch.eye(9, dtype=torch.float64)[torch.randperm(9)],
    "diagonal of mixed signs": lambda: torch.diag(torch.tensor([1.0, -2, 3, -4, 5, -6], dtype=torch.float64)),
    "rank one": lambda: torch.outer(torch.randn(12), torch.randn(9)).double(),
    "rank five": lambda: (torch.randn(20, 5) @ torch.randn(5, 20)).double(),
    "zero": lambda: torch.zeros(5, 4, dtype=torch.float64),
    "condition 1e8": lambda: with_spectrum(torch.logspace(0, -8, 20)),
    "repeated": lambda: with_spectrum([3.0] * 10 + [1.0] * 10 + [0.0] * 5),
    "one row": lambda: torch.randn(1, 30, dtype=torch.float64),
    "one column": lambda: torch.randn(30, 1, dtype=torch.float64),
    "one positive": lambda: torch.tensor([[2.0]], dtype=torch.float64),
    "one negative": lambda: torch.tensor([[-2.0]], dtype=torch.float64),
    "wide": lambda: torch.randn(12, 30, dtype=torch.float64),
    "tall": lambda: torch.randn(70, 40, dtype=torch.float64),
    "tiny": lambda: torch.randn(8, 8, dtype=torch.float64) * 1e-30,
    "huge": lambda: torch.randn(8, 8, dtype=torch.float64) * 1e30,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ZOO)
def test_every_weight_is_met(name, dtype):
    weight = ZOO[name]().to(dtype)
    k = min(weight.shape)
    u, sigma, v = fit(weight, k, k)
    assert relative(svd_product(u, sigma, v), weight) < 1e-14
    assert (sigma >= 0).all()
    for reflectors in (u, v):
        norms = reflectors.norm(dim=0)
        single = reflectors.shape[0] == k  # the last column has one entry
        alive = norms[:-1] if single else norms
        torch.testing.assert_close(alive, torch.ones_like(alive))


@pytest.mark.parametrize(("m1", "m2"), [(1, 1), (3, 3), (3, 7), (7, 3), (10, 2), (0, 4), (5, 0)])
def test_fewer_reflectors_keep_the_leading_triplets(m1, m2):
    weight = torch.randn(12, 10, dtype=torch.float64)
    u, sigma, v = fit(weight, m1, m2)
    near = svd_product(u, sigma, v)
    left, values, right = torch.linalg.svd(weight)
    m = min(m1, m2)
    torch.testing.assert_close(sigma[:m], values[:m])
    for i in range(m):
        torch.testing.assert_close(near @ right[i], values[i] * left[:, i])
        torch.testing.assert_close(near.mT @ left[:, i], values[i] * right[i])
    # the other σ are the best for this U and V: the error is orthogonal to every u_i v_iᵀ
    full_u, full_v = reflector_product(u)[:, :10], reflector_product(v)[:, :10]
    best = (full_u.mT @ weight @ full_v).diagonal()
    torch.testing.assert_close(sigma[m:], best[m:])
    assert (u.norm(dim=0) > 0).all()
    assert (v.norm(dim=0) > 0).all()


@pytest.mark.parametrize("m1", [0, 1, 4, 8, 9])
def test_scaled_orthogonal_with_n_reflectors_in_all(m1):
    """Theorem 3."""
    weight = 2.5 * orthogonal(9)
    u, sigma, v = fit(weight, m1, 9 - m1)
    assert relative(svd_product(u, sigma, v), weight) < 1e-14
    torch.testing.assert_close(sigma, torch.full((9,), 2.5, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(6, 6), (7, 3), (2, 3, 6, 4), (0, 4, 2), (3, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_reflectors_of_orthonormal_columns(shape, dtype):
    q = torch.linalg.qr(torch.randn(shape, dtype=dtype)).Q
    reflectors = householder_from_orthogonal(q)
    assert reflectors.shape == q.shape
    assert reflectors.dtype == dtype
    product = householder_product(reflectors, columns=shape[-1])
    torch.testing.assert_close(product, q, rtol=0, atol=1e-14 if dtype == torch.float64 else 1e-6)


def test_drawn_matrices_are_uniform():
    """The trace of a Haar matrix has mean 0 and variance 1; its determinant is ±1 with equal odds."""
    torch.manual_seed(0)
    matrices = torch.stack([householder_product(haar_reflectors(4, 4)) for _ in range(2000)])
    traces = matrices.diagonal(dim1=1, dim2=2).sum(-1)
    assert abs(traces.mean()) < 0.1
    assert abs(traces.var() - 1) < 0.15
    assert abs(torch.linalg.det(matrices).mean()) < 0.1
    assert matrices.mean(0).abs().max() < 0.05


def test_drawn_factors_have_the_level_asked_for():
    u, sigma, v = draw(6, 4, 2, 3, sigma=torch.full((4,), 0.5))
    torch.testing.assert_close(torch.linalg.svdvals(svd_product(u, sigma, v)), sigma)
    assert sigma.unique().tolist() == [0.5]


def test_too_many_columns_are_named():
    with pytest.raises(ValueError, match="^q: expected"):
        householder_from_orthogonal(torch.ones(2, 3))
    with pytest.raises(TypeError, match="^q: expected"):
        householder_from_orthogonal(torch.ones(3, 3, dtype=torch.int64))


def test_entries_of_drawn_matrices_are_of_one_size():
    """E[q_ij²] = 1/n for every i and j, wherever an entry stands."""
    torch.manual_seed(0)
    n = 6
    q = householder_product(torch.stack([haar_reflectors(n, n) for _ in range(4000)]))
    torch.testing.assert_close(n * q.square().mean(0), torch.ones(n, n, dtype=torch.float64), rtol=0, atol=0.08)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_theorem_3_whatever_the_scale(scale):
    weight = scale * orthogonal(9)
    assert relative(svd_product(*fit(weight, 4, 5)) / scale, weight / scale) < 1e-14


def test_rows_of_one_length_do_not_make_a_matrix_orthogonal():
    weight = torch.randn(8, 8, dtype=torch.float64)
    weight /= weight.norm(dim=1, keepdim=True)
    torch.testing.assert_close(fit(weight, 4, 4)[1][:4], torch.linalg.svdvals(weight)[:4])
    assert fit(torch.zeros(8, 8), 4, 4)[1].tolist() == [0.0] * 8


def test_nearly_equal_singular_values_are_not_made_equal():
    weight = with_spectrum(torch.linspace(1.03, 1.0, 9, dtype=torch.float64)).float()
    values = torch.linalg.svdvals(weight.double())
    _, sigma, _ = fit(weight, 5, 4)  # as many reflectors as Theorem 3 asks for where σ are equal
    torch.testing.assert_close(sigma[:4], values[:4])
    _, sigma, _ = fit(weight / values.float().mean(), 9, 9)
    assert sigma.max() - sigma.min() > 0.028


@pytest.mark.parametrize(("m1", "m2"), [(4, 4), (3, 7), (7, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_few_reflectors_of_a_large_weight_keep_the_leading_triplets(m1, m2, dtype):
    weight = torch.randn(180, 200, dtype=dtype)
    near, weight = svd_product(*fit(weight, m1, m2)), weight.double()
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    for i in range(3):
        torch.testing.assert_close(near @ right[i], values[i] * left[:, i], rtol=0, atol=tolerance)
        torch.testing.assert_close(near.mT @ left[:, i], values[i] * right[i], rtol=0, atol=tolerance)


LARGE = {
    "random": lambda n: torch.randn(n, n, dtype=torch.float64),
    "wide": lambda n: torch.randn(n, 2 * n, dtype=torch.float64),
    "tall": lambda n: torch.randn(2 * n, n, dtype=torch.float64),
    "orthogonal": orthogonal,
    "minus identity": lambda n: -torch.eye(n, dtype=torch.float64),
    "diagonal of mixed signs": lambda n: torch.diag(torch.arange(1.0, n + 1) * (-1) ** torch.arange(n)).double(),
    "condition 1e5": lambda n: with_spectrum(torch.logspace(0, -5, n, dtype=torch.float64)),
    "condition 1e8": lambda n: with_spectrum(torch.logspace(0, -8, n, dtype=torch.float64)),
    "condition 1e16": lambda n: with_spectrum(torch.logspace(0, -16, n, dtype=torch.float64)),
    "half of it small": lambda n: with_spectrum([1.0] * (n // 2) + [1.2e-5] * (n - n // 2)),
    "half of it smaller": lambda n: with_spectrum([1.0] * (n // 2) + [1e-7] * (n - n // 2)),
    "one large": lambda n: with_spectrum([1.0] + [1.1e-5] * (n - 1)),
    "repeated": lambda n: with_spectrum([3.0] * (n // 2) + [1.0] * (n // 4) + [0.0] * (n - n // 2 - n // 4)),
    "nearly repeated": lambda n: with_spectrum(torch.linspace(1 + 1e-7, 1, n, dtype=torch.float64)),
    "rank one": lambda n: torch.outer(torch.randn(n), torch.randn(n)).double(),
    "zero": lambda n: torch.zeros(n, n, dtype=torch.float64),
    "one row": lambda n: torch.zeros(n, n, dtype=torch.float64).index_fill(0, torch.tensor(5), 2.0),
    "graded rows": lambda n: torch.logspace(0, -20, n, dtype=torch.float64).diag() @ torch.randn(n, n).double(),
    "tiny": lambda n: torch.randn(n, n, dtype=torch.float64) * 1e-36,
    "huge": lambda n: torch.randn(n, n, dtype=torch.float64) * 1e36,
}


def multiplied_out(u, sigma, v):
    columns = len(sigma)
    return householder_product(u, columns) * sigma @ householder_product(v, columns).mT


@pytest.mark.parametrize("name", LARGE)
def test_every_large_weight_in_float32_is_met_far_below_its_precision(name):
    """By the Gram matrix, or by an SVD where that says too little."""
    weight = LARGE[name](300).float()
    u, sigma, v = fit(weight, 300, 300)
    assert relative(multiplied_out(u, sigma, v), weight) < 1e-8
    torch.testing.assert_close(sigma, torch.linalg.svdvals(weight.double()), rtol=0, atol=1e-8 * float(sigma[0]))
    for reflectors in (u, v):
        torch.testing.assert_close(reflectors[:, :-1].norm(dim=0), torch.ones(299, dtype=torch.float64))


@pytest.mark.parametrize("name", ["random", "condition 1e8", "one large", "repeated"])
def test_a_large_weight_in_float64_is_met_in_float64(name):
    weight = LARGE[name](300)
    assert relative(multiplied_out(*fit(weight, 300, 300)), weight) < 1e-14


@pytest.mark.parametrize(("m1", "m2"), [(6, 6), (2, 4), (5, 2), (3, 0)])
def test_blocks_are_fitted_side_by_side_as_one_by_one(m1, m2):
    weights = torch.stack(
        [ZOO["diagonal of mixed signs"](), torch.randn(6, 6).double(), 3 * orthogonal(6), torch.zeros(6, 6)]
    )
    for i, one in enumerate(weights):
        for found, wanted in zip(fit(weights, m1, m2), fit(one, m1, m2), strict=True):
            torch.testing.assert_close(found[i], wanted)
