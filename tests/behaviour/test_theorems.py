"""The paper's theorems on what reflectors reach, and its perturbation bounds, against the mathematics written out."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param import (
    Fixed,
    SVDParametrization,
    register_svd_parametrization,
    spectral_norm,
    svd_parametrizations,
)
from spectral_param.functional import householder_from_orthogonal
from spectral_param.nn import SpectralRNN, SVDLinear
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
def test_lemma_1_reflectors_triangularize_every_matrix(n: int) -> None:
    """B = H_n(u_n) … H_1(u_1) R with R upper triangular and its diagonal not negative."""
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


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (3, 8), (8, 3), (39, 40), (40, 7)])
def test_theorem_4_every_rectangular_matrix_is_reached(shape: tuple[int, int]) -> None:
    random = torch.randn(shape, dtype=torch.float64)
    eye = torch.eye(*shape, dtype=torch.float64)
    for w in (random, eye, -eye, torch.outer(random[:, 0], random[0]), torch.zeros_like(random)):
        found = registered(w)
        assert found.reflectors == (min(shape), min(shape))
        assert close(written_out(found), w)


# -------------------------------------------------------------------------------------------------- perturbation bounds


def perturbation(weight: Tensor, norm: float) -> Tensor:
    direction = torch.randn_like(weight)
    return direction * (norm / torch.linalg.matrix_norm(direction, 2))


def feed_forward(weights: list[Tensor], x: Tensor, slope: float) -> Tensor:
    for i, w in enumerate(weights):
        x = x @ w.mT if i == 0 else F.leaky_relu(x, slope) @ w.mT
    return x


def feed_forward_bound(norms: list[float], changes: list[float], radius: float) -> float:
    """Lemma 2: e B Π‖W_i‖ Σ‖δW_i‖/‖W_i‖, for ‖δW_i‖ ≤ ‖W_i‖ / d."""
    ratios = sum(change / norm for change, norm in zip(changes, norms, strict=True))
    return math.e * radius * math.prod(norms) * ratios


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_lemma_2_feed_forward(depth: int, slope: float) -> None:
    sizes = [6, *torch.randint(3, 12, (depth,)).tolist()]
    layers = [SVDLinear(q, p, bias=False, dtype=torch.float64) for q, p in itertools.pairwise(sizes)]
    for scale in (0.5, 1.0, 2.0):
        weights = [scale * (1 + torch.rand(()).item()) * layer.weight.detach() for layer in layers]
        norms = [torch.linalg.matrix_norm(w, 2).item() for w in weights]
        for share in (1.0, 0.01):
            changes = [share * torch.rand(()).item() * norm / depth for norm in norms]
            moved = [w + perturbation(w, change) for w, change in zip(weights, changes, strict=True)]
            x = torch.randn(100, 6, dtype=torch.float64)
            difference = feed_forward(moved, x, slope) - feed_forward(weights, x, slope)
            radius = torch.linalg.vector_norm(x, dim=-1).amax().item()
            bound = feed_forward_bound(norms, changes, radius)
            assert torch.linalg.vector_norm(difference, dim=-1).amax().item() <= bound


def test_lemma_2_is_met_up_to_a_factor_of_two() -> None:
    depth, q = 20, haar(5)
    weights = [q] * depth
    x = torch.randn(1, 5, dtype=torch.float64)
    difference = feed_forward([w * (1 + 1 / depth) for w in weights], x, 1.0) - feed_forward(weights, x, 1.0)
    bound = feed_forward_bound([1.0] * depth, [1 / depth] * depth, x.norm().item())
    assert bound / 2 <= difference.norm().item() <= bound


def recurrent_bound(norms: list[float], changes: list[float], steps: int, radius: float) -> float:
    """Lemma 4: 2e B T² √ζ (‖δW‖ + ‖δM‖ + ‖δY‖), for ‖δW‖ ≤ max(1, ‖W‖) / T and ‖δY‖ ≤ max(1, ‖Y‖)."""
    w, m, y = (max(1.0, norm) for norm in norms)
    return 2 * math.e * radius * steps**2 * w ** (steps - 1) * m * y * sum(changes)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "leaky_relu"])
@pytest.mark.parametrize("steps", [1, 2, 10, 30])
@pytest.mark.parametrize("level", [0.5, 1.0, 1.1])
def test_lemma_4_recurrent(nonlinearity: str, steps: int, level: float) -> None:
    rnn = SpectralRNN(3, 8, nonlinearity=nonlinearity, bias=False, sigma=Fixed(level), dtype=torch.float64)
    readout = SVDLinear(8, 4, bias=False, dtype=torch.float64)
    norms = [spectral_norm(rnn, "weight_hh_l0"), spectral_norm(rnn, "weight_ih_l0"), spectral_norm(readout)]
    norms = [norm.item() for norm in norms]
    weights = [rnn.weight_hh_l0.detach(), rnn.weight_ih_l0.detach(), readout.weight.detach()]
    x = torch.randn(steps, 50, 3, dtype=torch.float64)
    radius = torch.linalg.vector_norm(x, dim=-1).amax().item()

    def output(w: Tensor, m: Tensor, y: Tensor) -> Tensor:
        h = torch.zeros(50, 8, dtype=torch.float64)
        phi = {"tanh": torch.tanh, "relu": torch.relu, "leaky_relu": F.leaky_relu}[nonlinearity]
        for step in x:
            h = phi(h @ w.mT + step @ m.mT)
        return h @ y.mT

    torch.testing.assert_close(output(*weights), readout(rnn(x)[0][-1]))
    for share in (1.0, 0.01):
        limits = [max(1.0, norms[0]) / steps, 1.0, max(1.0, norms[2])]
        changes = [share * torch.rand(()).item() * limit for limit in limits]
        moved = [weight + perturbation(weight, change) for weight, change in zip(weights, changes, strict=True)]
        difference = torch.linalg.vector_norm(output(*moved) - output(*weights), dim=-1)
        assert difference.amax().item() <= recurrent_bound(norms, changes, steps, radius)


def test_lemma_4_grows_as_the_square_of_the_steps_and_no_slower() -> None:
    """A state that adds up its inputs, and a recurrent weight that moves away from 1."""
    for steps in (10, 100, 1000):
        before = sum(1.0 for _ in range(steps))
        after = sum((1 + 1 / steps) ** t for t in range(steps))
        bound = recurrent_bound([1.0, 1.0, 1.0], [1 / steps, 0.0, 0.0], steps, 1.0)
        assert bound / 10 <= after - before <= bound
