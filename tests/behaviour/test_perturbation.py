"""How far outputs move when weights do: the paper's Lemmas 2 and 4, and what the generalization gaps rest on."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param import Fixed, spectral_norm
from spectral_param.nn import SpectralRNN, SVDLinear


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def haar(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q


def perturbation(weight: Tensor, norm: float) -> Tensor:
    direction = torch.randn_like(weight)
    return direction * (norm / torch.linalg.matrix_norm(direction, 2))


def feed_forward(weights: list[Tensor], x: Tensor, slope: float) -> Tensor:
    for i, w in enumerate(weights):
        x = x @ w.mT if i == 0 else F.leaky_relu(x, slope) @ w.mT
    return x


def feed_forward_bound(norms: list[float], changes: list[float], radius: float) -> float:
    """Neyshabur et al., Lemma 2: e B Π‖W_i‖ Σ‖δW_i‖/‖W_i‖, for ‖δW_i‖ ≤ ‖W_i‖ / d."""
    ratios = sum(change / norm for change, norm in zip(changes, norms, strict=True))
    return math.e * radius * math.prod(norms) * ratios


@pytest.mark.parametrize("depth", [1, 2, 5, 20])
@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_feed_forward_bound_of_neyshabur_et_al(depth: int, slope: float) -> None:
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


def test_the_feed_forward_bound_is_met_up_to_a_factor_of_two() -> None:
    depth, q = 20, haar(5)
    weights = [q] * depth
    x = torch.randn(1, 5, dtype=torch.float64)
    difference = feed_forward([w * (1 + 1 / depth) for w in weights], x, 1.0) - feed_forward(weights, x, 1.0)
    bound = feed_forward_bound([1.0] * depth, [1 / depth] * depth, x.norm().item())
    assert bound / 2 <= difference.norm().item() <= bound


def recurrent_bound(norms: list[float], changes: list[float], steps: int, radius: float) -> float:
    """What the gap of equal noise rests on: 2e B T² √ζ (‖δW‖ + ‖δM‖ + ‖δY‖).

    For ‖δW‖ ≤ max(1, ‖W‖) / T and ‖δY‖ ≤ max(1, ‖Y‖).
    """
    w, m, y = (max(1.0, norm) for norm in norms)
    return 2 * math.e * radius * steps**2 * w ** (steps - 1) * m * y * sum(changes)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "leaky_relu"])
@pytest.mark.parametrize("steps", [1, 2, 10, 30])
@pytest.mark.parametrize("level", [0.5, 1.0, 1.1])
def test_recurrent_bound_of_equal_noise(nonlinearity: str, steps: int, level: float) -> None:
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


def test_the_recurrent_bound_grows_as_the_square_of_the_steps_and_no_slower() -> None:
    """A state that adds up its inputs, and a recurrent weight that moves away from 1."""
    for steps in (10, 100, 1000):
        before = sum(1.0 for _ in range(steps))
        after = sum((1 + 1 / steps) ** t for t in range(steps))
        bound = recurrent_bound([1.0, 1.0, 1.0], [1 / steps, 0.0, 0.0], steps, 1.0)
        assert bound / 10 <= after - before <= bound


# ------------------------------------------------------------------------------------------ the paper's lemmas 2 and 4


def states(w: Tensor, m: Tensor, x: Tensor) -> list[Tensor]:
    """h_1 … h_T of h_t = relu(W h_{t-1} + M x_t), for x (T, B, n)."""
    found = [torch.zeros(x.shape[1], len(w), dtype=torch.float64)]
    for step in x:
        found.append(torch.relu(found[-1] @ w.mT + step @ m.mT))
    return found[1:]


def norm(weight: Tensor) -> float:
    return torch.linalg.matrix_norm(weight, 2).item()


def longest(rows: Tensor) -> float:
    return torch.linalg.vector_norm(rows, dim=-1).amax().item()


LEVELS = pytest.mark.parametrize("level", [0.1, 1.0, 1.1])


@LEVELS
@pytest.mark.parametrize("steps", [1, 2, 30])
def test_lemma_4_states_stay_bounded(steps: int, level: float) -> None:
    """‖h_i‖ ≤ B ‖M‖ i max(‖W‖^{i-1}, 1)."""
    w, m, x = level * haar(6), torch.randn(6, 6, dtype=torch.float64), torch.randn(steps, 50, 6, dtype=torch.float64)
    for i, h in enumerate(states(w, m, x), start=1):
        assert longest(h) <= longest(x.flatten(0, 1)) * norm(m) * i * max(level ** (i - 1), 1) * (1 + 1e-12)


def test_lemma_4_is_met() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    assert states(one, one, torch.ones(10, 1, 1, dtype=torch.float64))[-1].item() == 10.0


@LEVELS
@pytest.mark.parametrize("steps", [1, 2, 10, 30])
@pytest.mark.parametrize("share", [1.0, 0.01])
def test_lemma_2_as_it_is_proved(steps: int, level: float, share: float) -> None:
    """The activation moves by B t e (t ‖M‖ ‖δW‖ + ‖δM‖) μ, the output as stated, μ = max(‖W‖^{t-1}, 1).

    ‖δW‖ may be max(1, ‖W‖) / t, where the paper has ‖W‖ / t.
    """
    w, m, y = level * haar(6), *torch.randn(2, 6, 6, dtype=torch.float64)
    x = torch.randn(steps, 50, 6, dtype=torch.float64)
    limits = [max(1.0, level) / steps, norm(m) / steps, norm(y) / steps]
    dw, dm, dy = (perturbation(a, share * limit) for a, limit in zip((w, m, y), limits, strict=True))
    before, after = states(w, m, x)[-1], states(w + dw, m + dm, x)[-1]
    reach = longest(x.flatten(0, 1)) * steps * max(level ** (steps - 1), 1)
    assert longest(after - before) <= reach * math.e * (steps * norm(m) * norm(dw) + norm(dm))
    output = norm(y) * norm(dw) * norm(m) * steps * math.e + norm(y) * norm(dm) * math.e + norm(dy) * norm(m)
    assert longest(after @ (y + dy).mT - before @ y.mT) <= reach * output


def test_the_first_line_of_lemma_2_is_false_as_printed() -> None:
    """B t e ‖δM‖ + B (t + 2) ‖δW‖ ‖M‖ ‖W‖^{t-2}: 1.2 where the state moves by 5.9."""
    one, x = torch.ones(1, 1, dtype=torch.float64), torch.ones(10, 1, 1, dtype=torch.float64)
    moved = states(1.1 * one, one, x)[-1].item() - states(one, one, x)[-1].item()
    assert moved == pytest.approx(5.937, abs=1e-3)
    assert moved > (10 + 2) * 0.1
