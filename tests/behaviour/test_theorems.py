"""The paper's theorems on what reflectors reach, against the mathematics written out."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from spectral_param import (
    Fixed,
    SVDParametrization,
    register_svd_parametrization,
    svd_parametrizations,
)
from spectral_param.functional import householder_from_orthogonal
from spectral_param.nn import SVDLinear
from tests.reference import reflector_product, svd_product

SIZES = [1, 2, 3, 8, 33]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def haar(n: int, determinant: int = 1) -> Tensor:
    q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q
    q[:, 0] *= determinant * torch.linalg.det(q).sign()
    return q


def registered(weight: Tensor, **options: object) -> SVDParametrization:
    """The parametrization of a float64 layer that held this weight."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
    layer.weight.data = weight.clone()
    (_, parametrization), *_ = svd_parametrizations(register_svd_parametrization(layer, **options))
    return parametrization


def written_out(parametrization: SVDParametrization) -> Tensor:
    """W from the trained tensors, a reflector at a time."""
    (p, q), k = parametrization.shape, min(parametrization.shape)
    sides = []
    for reflectors, n in ((parametrization.u, p), (parametrization.v, q)):
        sides.append(torch.zeros(n, 0, dtype=torch.float64) if reflectors is None else reflectors.detach())
    sigma = parametrization.sigma.detach()
    assert sigma.shape == (k,)
    return svd_product(sides[0], sigma, sides[1])


def close(near: Tensor, exact: Tensor) -> bool:
    return bool(torch.linalg.norm(near - exact) <= 1e-13 * max(1.0, torch.linalg.norm(exact).item()))


# ------------------------------------------------------------------------------------------------ what can be reached


@pytest.mark.parametrize("n", SIZES)
def test_proposition_1_reflectors_triangularize_every_matrix(n: int) -> None:
    """B = H_n(u_n) … H_1(u_1) R with R upper triangular and its diagonal not negative.

    The paper says positive, which a singular B cannot have.
    """
    for b in (torch.randn(n, n, dtype=torch.float64), torch.ones(n, n, dtype=torch.float64)):
        q, r = torch.linalg.qr(b)
        signs = torch.where(r.diagonal() < 0, -1.0, 1.0).double()
        r = reflector_product(householder_from_orthogonal(q * signs)).mT @ b
        assert close(r.triu(), r)
        assert r.diagonal().min() >= -1e-12


@pytest.mark.parametrize("n", SIZES)
def test_theorem_1_n_reflectors_reach_every_orthogonal_matrix(n: int) -> None:
    eye = torch.eye(n, dtype=torch.float64)
    for q in (haar(n), haar(n, -1), eye, -eye, eye.flip(0), eye.roll(1, 0)):
        assert close(reflector_product(householder_from_orthogonal(q)), q)


@pytest.mark.parametrize("n", SIZES)
def test_theorem_1_and_nothing_else(n: int) -> None:
    eye = torch.eye(n, dtype=torch.float64)
    for m in range(1, min(n, 8) + 1):
        layer = SVDLinear(n, n, sigma=Fixed(), reflectors=m, dtype=torch.float64)
        for factor in layer.parametrizations["weight"].parameters():
            nn.init.normal_(factor, std=10.0)
        assert close(layer.weight.mT @ layer.weight, eye)


@pytest.mark.parametrize("n", SIZES)
def test_theorem_2_every_square_matrix_is_reached(n: int) -> None:
    random = torch.randn(n, n, dtype=torch.float64)
    defective = torch.diag_embed(torch.ones(n - 1, dtype=torch.float64), offset=1)
    low_rank = torch.outer(random[0], random[-1])
    for w in (random, defective, low_rank, haar(n, -1), 3 * haar(n), torch.zeros_like(random), random.triu()):
        assert close(written_out(registered(w)), w)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 21])
def test_theorem_3_n_reflectors_split_anyhow_reach_every_orthogonal_matrix(n: int) -> None:
    for m1 in range(n + 1):
        for determinant in (1, -1):
            w = haar(n, determinant)
            found = registered(w, reflectors=(m1, n - m1), sigma=Fixed())
            assert found.reflectors == (m1, n - m1)
            assert close(written_out(found), w)
        found = registered(2.5 * w, reflectors=(m1, n - m1))
        assert close(written_out(found), 2.5 * w)


@pytest.mark.parametrize("n", SIZES)
def test_lemma_1_leading_columns_do_not_depend_on_the_reflectors_left_out(n: int) -> None:
    """V^(k) = H_n … H_k: equal up to column n - max(k₁, k₂) + 1.

    The paper stops one column before, which gives m - 1 of the m columns that its Theorem 4 needs.
    """
    v = torch.randn(n, n, dtype=torch.float64).tril()  # columns v_n, v_{n-1}, …, v_1
    products = {k: reflector_product(v[:, : n - k + 1]) for k in range(1, n + 1)}
    for k1, k2 in itertools.combinations(products, 2):
        equal = n - max(k1, k2) + 1
        assert close(products[k1][:, :equal], products[k2][:, :equal])
        assert not close(products[k1][:, equal], products[k2][:, equal])


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (3, 8), (8, 3), (39, 40), (40, 7)])
def test_theorem_4_every_rectangular_matrix_is_reached(shape: tuple[int, int]) -> None:
    """With M_{1,n-m+1} if m ≤ n, else M_{m-n+1,1}; for the latter the theorem has n-m+1, its proof the right one."""
    random = torch.randn(shape, dtype=torch.float64)
    eye = torch.eye(*shape, dtype=torch.float64)
    for w in (random, eye, -eye, torch.outer(random[:, 0], random[0]), torch.zeros_like(random)):
        found = registered(w)
        assert found.reflectors == (min(shape), min(shape))
        assert close(written_out(found), w)
