import math

import pytest
import torch
from torch import Tensor, nn

from spectral_param import Band, Bounded, register_svd_parametrization
from spectral_param.bounds import mlp_generalization_gap, rnn_generalization_gap
from spectral_param.bounds.norms import both_norms
from spectral_param.nn import SpectralRNN, SVDLinear

NUMBERS = {"input_norm": 2.0, "margin": 0.5, "samples": 1000, "delta": 0.01}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def norms(*weights: Tensor) -> tuple[list[float], list[float]]:
    """‖W‖₂ and ‖W‖_F of each, by a decomposition."""
    wide = [w.detach().double() for w in weights]
    return [torch.linalg.matrix_norm(w, 2).item() for w in wide], [w.norm().item() for w in wide]


@pytest.mark.parametrize("steps", [1, 5, 40])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_gap_of_equal_noise_is_its_formula(steps: int, scale: float) -> None:
    rnn, readout = SpectralRNN(3, 8, bias=False), nn.Linear(8, 2, bias=False)
    rnn.weight_hh_l0 = scale * rnn.weight_hh_l0
    for weight in (rnn.weight_ih_l0, readout.weight):
        weight.data *= scale
    (w, m, y), frobenius = norms(rnn.weight_hh_l0, rnn.weight_ih_l0, readout.weight)
    zeta = max(1, w) ** (2 * steps - 2) * max(1, m * m) * max(1, y * y)
    size = sum(f * f for f in frobenius)
    capacity = 4 * steps**4 * 8 * math.log(8) * zeta * size / 0.25
    expected = math.sqrt((capacity + math.log(1000 / 0.01)) / 1000)
    found = rnn_generalization_gap(rnn, readout, steps=steps, noise="equal", **NUMBERS)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("biases", [(True, False), (False, True), (True, True)])
def test_under_equal_noise_a_bias_is_a_column_whose_input_is_one(biases: tuple[bool, bool]) -> None:
    rnn, readout = nn.RNN(3, 8, bias=biases[0]), nn.Linear(8, 4, bias=biases[1])
    found = rnn_generalization_gap(rnn, readout, steps=6, noise="equal", **NUMBERS)
    m, y = rnn.weight_ih_l0, readout.weight
    if biases[0]:
        m = torch.cat([m, (rnn.bias_ih_l0 + rnn.bias_hh_l0).unsqueeze(1)], dim=1)
    if biases[1]:
        y = torch.cat([y, readout.bias.unsqueeze(1)], dim=1)
    (w, m, y), frobenius = norms(rnn.weight_hh_l0, m, y)
    zeta = max(1, w) ** 10 * max(1, m * m) * max(1, y * y)
    capacity = 5 * 6**4 * 8 * math.log(8) * zeta * sum(f * f for f in frobenius) / 0.25
    exact = math.sqrt((capacity + math.log(1000 / 0.01)) / 1000)
    assert exact * (1 - 1e-6) <= found <= 2 * exact  # ‖[M b]‖ ≤ √(‖M‖² + ‖b‖²) ≤ √2 ‖[M b]‖, and so for Y


# ------------------------------------------------------------------------------------------------ the paper's statement


def theorem_5(w: Tensor, m: Tensor, y: Tensor, steps: int, reach: float) -> float:
    """As it is printed, with n the greatest size and ``reach`` for B²."""
    n = max(*w.shape, *m.shape, *y.shape)
    (norm, m_norm, y_norm), (w_f, m_f, y_f) = norms(w, m, y)
    capacity = (
        reach * steps**2 * n * math.log(n) * max(norm ** (2 * steps - 2), 1) * m_norm**2 * y_norm**2
        * (steps**2 * w_f**2 + m_f**2 / m_norm**2 + y_f**2 / y_norm**2) / 0.25
    )  # fmt: skip
    return math.sqrt((capacity + math.log(steps * 1000 / 0.01)) / 1000)


@pytest.mark.parametrize("steps", [1, 5, 40])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_recurrent_gap_is_that_of_theorem_5(steps: int, scale: float) -> None:
    rnn, readout = SpectralRNN(3, 8, bias=False), nn.Linear(8, 2, bias=False)
    rnn.weight_hh_l0 = scale * rnn.weight_hh_l0
    for weight in (rnn.weight_ih_l0, readout.weight):
        weight.data *= scale
    expected = theorem_5(rnn.weight_hh_l0, rnn.weight_ih_l0, readout.weight, steps, 4.0)
    assert rnn_generalization_gap(rnn, readout, steps=steps, **NUMBERS) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("biases", [(True, False), (False, True), (True, True)])
def test_biases_are_absorbed_in_weights(biases: tuple[bool, bool]) -> None:
    rnn, readout = nn.RNN(3, 8, bias=biases[0]), nn.Linear(8, 4, bias=biases[1])
    found = rnn_generalization_gap(rnn, readout, steps=6, **NUMBERS)
    bias = (rnn.bias_ih_l0 + rnn.bias_hh_l0) if biases[0] else torch.zeros(8)
    m, y = torch.cat([rnn.weight_ih_l0, bias.unsqueeze(1)], dim=1), readout.weight
    if biases[1]:  # a ninth entry of the state, which is 1
        m = torch.cat([m, torch.tensor([[0.0, 0.0, 0.0, 1.0]])])
        y = torch.cat([y, readout.bias.unsqueeze(1)], dim=1)
    exact = theorem_5(rnn.weight_hh_l0, m, y, 6, 5.0) * math.sqrt(8 * math.log(8) / (len(m) * math.log(len(m))))
    assert exact * (1 - 1e-2) <= found <= 2 * exact  # norms of [M b] and [Y c] are bounds


@pytest.mark.parametrize("steps", [5, 100])
def test_over_ranges_is_corollary_1_but_for_what_its_o_hides(steps: int) -> None:
    n, radius = 8, 0.1
    rnn = SpectralRNN(n, n, bias=False, sigma=Band(radius))
    readout = nn.Linear(n, n, bias=False)
    (m, y), _ = norms(rnn.weight_ih_l0, readout.weight)
    corollary = 4 * steps**4 * n**2 * math.log(n) * (1 + radius) ** (2 * steps) * m**2 * y**2 / 0.25
    gap = rnn_generalization_gap(rnn, readout, steps=steps, over_ranges=True, **NUMBERS)
    capacity = gap**2 * 1000 - math.log(steps * 1000 / 0.01)
    assert corollary < capacity < corollary * (1 + 2 / steps**2)


def test_weights_of_zero_are_no_division_by_zero() -> None:
    rnn, readout = nn.RNN(3, 8, bias=False), nn.Linear(8, 2, bias=False)
    rnn.weight_ih_l0.data.zero_()
    gap = rnn_generalization_gap(rnn, readout, steps=5, **NUMBERS)
    assert gap == pytest.approx(math.sqrt(math.log(5 * 1000 / 0.01) / 1000))


def test_over_ranges_holds_for_every_sigma_within() -> None:
    rnn, readout = SpectralRNN(3, 8, sigma=Band(0.05)), SVDLinear(8, 2, sigma=Bounded(2.0))
    ever = rnn_generalization_gap(rnn, readout, steps=10, over_ranges=True, **NUMBERS)
    greatest = 0.0
    for scale in (0.0, 1.0, 100.0, -100.0):
        for layer in (rnn.parametrizations["weight_hh_l0"], readout.parametrizations["weight"]):
            nn.init.constant_(layer.original1, scale)
        greatest = max(greatest, rnn_generalization_gap(rnn, readout, steps=10, **NUMBERS))
    assert ever == pytest.approx(greatest, rel=1e-5)


def test_over_ranges_of_a_frozen_base_lets_the_trained_sigma_alone_grow() -> None:
    layer = register_svd_parametrization(nn.Linear(6, 6), base="frozen", reflectors=2, rank=2, sigma=Bounded(9.0))
    sigma = torch.linalg.svdvals(layer.weight.double())
    spectral, frobenius = both_norms(layer, over_range=True)
    assert spectral.item() == pytest.approx(9.0)
    assert frobenius.item() == pytest.approx((2 * 81 + sigma[2:].square().sum().item()) ** 0.5, rel=1e-5)
    present = [norm.item() for norm in both_norms(layer)]
    assert present == pytest.approx([sigma[0].item(), torch.linalg.vector_norm(sigma).item()])


def test_over_ranges_with_a_band_for_each_sigma() -> None:
    readout = nn.Linear(8, 2)
    low, high = SpectralRNN(3, 8, sigma=Band(0.1)), SpectralRNN(3, 8, sigma=Band(0.1, torch.linspace(0.5, 1, 8)))
    high.weight_ih_l0, high.bias_l0 = low.weight_ih_l0, low.bias_l0
    gaps = [rnn_generalization_gap(r, readout, steps=9, over_ranges=True, **NUMBERS) for r in (high, low)]
    assert 0.5 * gaps[1] < gaps[0] < gaps[1]


def test_without_a_range_nothing_is_promised() -> None:
    gap = rnn_generalization_gap(SpectralRNN(3, 8), nn.Linear(8, 2), steps=9, over_ranges=True, **NUMBERS)
    assert gap == math.inf


def test_a_narrow_band_grows_with_a_power_of_the_steps() -> None:
    def gap(steps: int, radius: float) -> float:
        rnn = SpectralRNN(3, 8, bias=False, sigma=Band(radius))
        readout = nn.Linear(8, 2, bias=False)
        for weight in (rnn.weight_ih_l0, readout.weight):
            nn.init.ones_(weight)
        return rnn_generalization_gap(rnn, readout, steps=steps, over_ranges=True, **NUMBERS)

    assert gap(2000, 1 / 2000) / gap(1000, 1 / 1000) == pytest.approx(4, rel=0.01)
    assert gap(2000, 0.1) / gap(1000, 0.1) > 1e40


def test_feed_forward_gap_is_the_formula() -> None:
    layers = [nn.Linear(6, 9, bias=False), SVDLinear(9, 5, bias=False), nn.Linear(5, 3, bias=False)]
    model = nn.Sequential(nn.Flatten(), layers[0], nn.ReLU(), layers[1], nn.Dropout(0.1), nn.ReLU(), layers[2])
    spectral, frobenius = norms(*(layer.weight for layer in layers))
    ratios = sum((f / s) ** 2 for f, s in zip(frobenius, spectral, strict=True))
    capacity = 4 * 9 * 9 * math.log(27) * math.prod(spectral) ** 2 * ratios / 0.25
    expected = math.sqrt((capacity + math.log(3 * 1000 / 0.01)) / 1000)
    assert mlp_generalization_gap(model, **NUMBERS) == pytest.approx(expected, rel=1e-5)
    layers[0].weight.data.zero_()
    assert math.isfinite(mlp_generalization_gap(model, **NUMBERS))


def test_feed_forward_gap_over_ranges() -> None:
    model = nn.Sequential(SVDLinear(6, 6, bias=False, sigma=Band(0.5)), nn.ReLU(), nn.Linear(6, 2, bias=False))
    ever = mlp_generalization_gap(model, over_ranges=True, **NUMBERS)
    assert mlp_generalization_gap(model, **NUMBERS) < ever
    nn.init.constant_(model[0].parametrizations["weight"].original1, 100.0)
    assert mlp_generalization_gap(model, **NUMBERS) == pytest.approx(ever, rel=1e-5)


def test_more_samples_and_a_wider_margin_narrow_the_gap() -> None:
    rnn, readout = register_svd_parametrization(nn.RNN(3, 8), "weight_hh_l0"), nn.Linear(8, 2)
    base = rnn_generalization_gap(rnn, readout, steps=5, **NUMBERS)
    for change in ({"samples": 10_000}, {"margin": 5.0}, {"delta": 0.1}, {"input_norm": 0.0}):
        assert rnn_generalization_gap(rnn, readout, steps=5, **(NUMBERS | change)) < base


@pytest.mark.parametrize(
    ("rnn", "readout", "change", "error", "words"),
    [
        (nn.GRU(3, 8), nn.Linear(8, 2), {}, TypeError, "rnn: .* got GRU"),
        (nn.RNN(3, 8, 2), nn.Linear(8, 2), {}, ValueError, "rnn: expected one layer"),
        (SpectralRNN(3, 8, learn_initial_state=True), nn.Linear(8, 2), {}, ValueError, "rnn: expected a first state"),
        (
            SpectralRNN(3, 8, nonlinearity="leaky_relu", negative_slope=2.0),
            nn.Linear(8, 2),
            {},
            ValueError,
            "rnn: expected slopes up to 1",
        ),
        (nn.RNN(3, 8), nn.Conv1d(8, 2, 1), {}, TypeError, "readout: .* got Conv1d"),
        (nn.RNN(3, 8), nn.Linear(7, 2), {}, ValueError, "readout: expected 8 features"),
        (nn.RNN(3, 8), nn.Linear(8, 2), {"steps": 0}, ValueError, "steps"),
        (nn.RNN(3, 8), nn.Linear(8, 2), {"input_norm": -1.0}, ValueError, "input_norm"),
        (nn.RNN(3, 8), nn.Linear(8, 2), {"margin": 0.0}, ValueError, "margin"),
        (nn.RNN(3, 8), nn.Linear(8, 2), {"samples": 0}, ValueError, "samples"),
        (nn.RNN(3, 8), nn.Linear(8, 2), {"delta": 1.0}, ValueError, "delta"),
        (nn.RNN(3, 8), nn.Linear(8, 2), {"noise": "none"}, ValueError, "noise: expected 'scaled' or 'equal'"),
    ],
    ids=str,
)
def test_errors(rnn: nn.Module, readout: nn.Module, change: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rnn_generalization_gap(rnn, readout, **({"steps": 5} | NUMBERS | change))


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (nn.Linear(2, 2), TypeError, "model: expected a torch.nn.Sequential"),
        (nn.Sequential(nn.Linear(2, 2)), ValueError, "model: expected layers without bias"),
        (nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh()), TypeError, "model: .* got Tanh"),
        (nn.Sequential(nn.ReLU()), ValueError, "model: expected a linear layer"),
    ],
    ids=str,
)
def test_errors_of_the_feed_forward_gap(model: nn.Module, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mlp_generalization_gap(model, **NUMBERS)
