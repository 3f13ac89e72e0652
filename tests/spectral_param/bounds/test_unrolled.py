import math

import pytest
import torch
from torch import Tensor, nn

from spectral_param import Band, Fixed, register_svd_parametrization
from spectral_param.bounds import unrolled_lipschitz_bounds
from spectral_param.nn import SpectralRNN

STEPS = 7


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def jacobian_norms(rnn: nn.Module, x: Tensor, h0: Tensor) -> tuple[float, float]:
    """Greatest singular values of dh_T/dh_0 and dh_T/dx for the last layer's h_T, worked out entry by entry."""

    def last(h0: Tensor, x: Tensor) -> Tensor:
        return rnn(x, h0)[0][-1]

    jacobians = torch.autograd.functional.jacobian(last, (h0, x))
    initial, inputs = (torch.linalg.matrix_norm(j.flatten(1), 2).item() for j in jacobians)
    return initial, inputs


NETWORKS = [
    nn.RNN(3, 5),
    nn.RNN(3, 5, num_layers=3, nonlinearity="relu"),
    register_svd_parametrization(nn.RNN(3, 5, num_layers=2), "weight_hh_l1", sigma=Band(0.5), init="orthogonal"),
    register_svd_parametrization(nn.RNN(3, 5), "weight_hh_l0", base="frozen", reflectors=2, rank=2),
    SpectralRNN(3, 5, nonlinearity="relu", sigma=Band(0.1)),
    SpectralRNN(3, 5, num_layers=2, dropout=0.5, learn_initial_state=True),
    SpectralRNN(3, 5, nonlinearity="leaky_relu", negative_slope=1.5),
    SpectralRNN(3, 5, num_layers=2, sigma=Fixed(1.3), nonlinearity="relu"),
]


@pytest.mark.parametrize("rnn", NETWORKS, ids=str)
def test_no_point_is_steeper(rnn: nn.Module) -> None:
    rnn = rnn.eval().double()
    bounds = unrolled_lipschitz_bounds(rnn, STEPS)
    for scale in (0.01, 1.0, 5.0):
        initial, inputs = jacobian_norms(
            rnn,
            scale * torch.randn(STEPS, 3, dtype=torch.float64),
            scale * torch.randn(rnn.num_layers, 5, dtype=torch.float64),
        )
        assert initial <= bounds.initial_state.item() * (1 + 1e-9)
        assert inputs <= bounds.inputs.item() * (1 + 1e-9)


@pytest.mark.parametrize(("steps", "digits"), [(500, 198), (700, 278), (784, math.inf), (1000, math.inf)])
def test_what_overflows_is_infinite_and_no_sooner(steps: int, digits: float) -> None:
    rnn = nn.RNN(2, 4, bias=False)
    with torch.no_grad():
        rnn.weight_hh_l0.copy_(2.5 * torch.eye(4))
    for bound in unrolled_lipschitz_bounds(rnn, steps):
        assert bound.log10().item() == pytest.approx(digits, abs=1.5)


def test_what_a_layer_does_not_pass_on_is_nothing_whatever_comes_after() -> None:
    rnn = nn.RNN(2, 4, num_layers=2, bias=False)
    with torch.no_grad():
        rnn.weight_hh_l1.mul_(1e10)
        rnn.weight_ih_l0.zero_()
    bounds = unrolled_lipschitz_bounds(rnn, 200)
    assert bounds.initial_state.isinf()
    assert bounds.inputs.item() == 0


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_numbers_above_zero_reach_the_bounds(layers: int, steps: int) -> None:
    rnn = nn.RNN(1, 1, layers, nonlinearity="relu", dtype=torch.float64)
    for i, parameter in enumerate(rnn.parameters()):
        parameter.data.fill_(0.6 + 0.1 * i)
    bounds = unrolled_lipschitz_bounds(rnn, steps)
    one = torch.ones(steps, 1, dtype=torch.float64)
    initial, inputs = jacobian_norms(rnn, one, torch.ones(layers, 1, dtype=torch.float64))
    assert bounds.initial_state.item() == pytest.approx(initial)
    assert bounds.inputs.item() == pytest.approx(inputs)


def test_one_layer_in_closed_form() -> None:
    rnn = SpectralRNN(3, 5, sigma=Fixed(0.9))
    bounds = unrolled_lipschitz_bounds(rnn, 50)
    m = torch.linalg.svdvals(rnn.weight_ih_l0.detach())[0].item()
    assert bounds.initial_state.item() == pytest.approx(0.9**50, rel=1e-4)
    assert bounds.inputs.item() == pytest.approx(m * math.sqrt(sum(0.81**t for t in range(50))), rel=1e-5)


def test_a_zero_recurrent_weight() -> None:
    rnn = nn.RNN(2, 3)
    rnn.weight_hh_l0.data.zero_()
    bounds = unrolled_lipschitz_bounds(rnn, 5)
    assert bounds.initial_state.item() == 0.0
    assert bounds.inputs.item() == pytest.approx(torch.linalg.svdvals(rnn.weight_ih_l0.detach())[0].item())


def test_gradients_reach_sigma() -> None:
    rnn = SpectralRNN(2, 4, num_layers=2, sigma=Band(0.1))
    sum(unrolled_lipschitz_bounds(rnn, 10)).backward()
    for layer in (0, 1):
        grad = rnn.parametrizations[f"weight_hh_l{layer}"].original1.grad
        assert torch.isfinite(grad).all()
        assert grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("rnn", "steps", "error", "words"),
    [
        (nn.LSTM(2, 3), 5, TypeError, "rnn: .* got LSTM"),
        (nn.RNN(2, 3, bidirectional=True), 5, ValueError, "rnn: .* bidirectional"),
        (nn.RNN(2, 3), 0, ValueError, "steps: .* got 0"),
        (nn.RNN(2, 3), 1.5, TypeError, "steps: .* got float"),
    ],
    ids=str,
)
def test_errors(rnn: nn.Module, steps: int, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        unrolled_lipschitz_bounds(rnn, steps)
