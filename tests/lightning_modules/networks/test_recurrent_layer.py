from typing import get_args

import pytest
import torch
from torch import nn

from lightning_modules import SequenceClassifier
from lightning_modules.networks.recurrent_layer import SINGLE_LAYER, Cell, output_features, recurrent_layer
from spectral_param import Unconstrained, singular_values, spectral_margin, svd_parametrizations
from tests.reference import reflector_product

CELLS = get_args(Cell)
# the cells whose layers may be stacked
STACKED = [cell for cell in CELLS if cell not in SINGLE_LAYER]

# Table 4 of the paper: series length, inputs and outputs, and the parameters of each model
TABLE_4 = [
    ("50words", 270, 10, 50, 3058, 7218, 2426, 2850),
    ("Adiac", 176, 11, 38, 2694, 6950, 2062, 2486),
    ("ArrowHead", 251, 1, 3, 1219, 4515, 587, 1011),
    ("Beef", 470, 10, 6, 1606, 5766, 974, 1398),
    ("BeetleFly", 512, 16, 3, 1699, 6435, 1067, 1491),
    ("CBF", 128, 8, 4, 1476, 5444, 844, 1268),
    ("Coffee", 286, 13, 2, 1570, 6018, 938, 1362),
    ("Cricket_X", 300, 15, 13, 1997, 6637, 1365, 1789),
    ("DistalPhalanxOutlineCorrect", 80, 8, 2, 1410, 5378, 778, 1202),
    ("DistalPhalanxTW", 80, 8, 9, 1641, 5609, 1009, 1433),
    ("ECG200", 96, 8, 2, 1410, 5378, 778, 1202),
    ("ECG5000", 140, 10, 6, 1606, 5766, 974, 1398),
    ("ECGFiveDays", 136, 8, 3, 1443, 5411, 811, 1235),
    ("FaceAll", 131, 1, 15, 1615, 4911, 983, 1407),
    ("FaceFour", 350, 14, 5, 1701, 6245, 1069, 1493),
    ("FacesUCR", 131, 1, 15, 1615, 4911, 983, 1407),
    ("Gun_Point", 150, 10, 3, 1507, 5667, 875, 1299),
    ("InsectWingbeatSound", 256, 16, 12, 1996, 6732, 1364, 1788),
    ("ItalyPowerDemand", 24, 4, 3, 1315, 4899, 683, 1107),
    ("Lighting2", 637, 13, 2, 1570, 6018, 938, 1362),
    ("MiddlePhalanxOutlineCorrect", 80, 8, 2, 1410, 5378, 778, 1202),
]


@pytest.mark.parametrize("cell", ["rnn", "lstm", "ornn", "spectral-rnn"])
def test_parameters_are_those_of_table_4(cell):
    column = 4 + ["rnn", "lstm", "ornn", "spectral-rnn"].index(cell)
    for name, length, input_size, *_ in TABLE_4:
        assert length % input_size == 0, name
    counted = {
        row[0]: sum(
            p.numel()
            for p in SequenceClassifier(
                row[2], row[3], cell, hidden_size=32, reflectors=16, learn_initial_state=True
            ).parameters()
        )
        for row in TABLE_4
    }
    assert counted == {row[0]: row[column] for row in TABLE_4}


# Table 2 of the paper: pixel MNIST, hidden size, and the parameters as it rounds them
def test_parameters_of_spectral_rnn_are_those_of_table_2():
    """About 6,000 for pixel MNIST."""
    model = SequenceClassifier(1, 10, "spectral-rnn", hidden_size=128, reflectors=16, learn_initial_state=True)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(6_000, rel=0.1)


@pytest.mark.parametrize("cell", CELLS)
def test_all_are_called_alike(cell):
    layer = recurrent_layer(cell, 3, 8, reflectors=4)
    input = torch.randn(2, 5, 3)
    output, state = layer(input)
    assert output.shape == (2, 5, output_features(cell, 8))
    # a sequence's answer depends on no other sequence of the batch: batch comes first
    alone, _ = layer(input[:1])
    torch.testing.assert_close(output[:1], alone)
    # two halves, the state carried, are the whole
    first, carried = layer(input[:, :2])
    second, end = layer(input[:, 2:], carried)
    torch.testing.assert_close(torch.cat([first, second], dim=1), output)
    torch.testing.assert_close(end, state)


@pytest.mark.parametrize("cell", STACKED)
def test_layers_are_stacked(cell):
    torch.manual_seed(0)
    stack = recurrent_layer(cell, 3, 8, num_layers=2, reflectors=4)
    input = torch.randn(2, 5, 3, requires_grad=True)
    output, state = stack(input)
    last = state[0] if isinstance(state, tuple) else state
    assert last.shape == (2, 2, 8)
    torch.testing.assert_close(output[:, -1], last[-1])
    one, two = (sum(p.numel() for p in recurrent_layer(cell, size, 8, reflectors=4).parameters()) for size in (3, 8))
    assert sum(p.numel() for p in stack.parameters()) == one + two


@pytest.mark.parametrize("cell", CELLS)
def test_initial_state_on_request(cell):
    without, trained = (recurrent_layer(cell, 3, 8, reflectors=4, learn_initial_state=learn) for learn in (False, True))
    states = 2 if "lstm" in cell else 1
    count = sum(p.numel() for p in trained.parameters() if p.requires_grad)
    rest = sum(p.numel() for p in without.parameters() if p.requires_grad)
    assert count - rest == states * output_features(cell, 8)
    assert trained.initial_state.shape == (states, output_features(cell, 8))
    assert (trained.initial_state == 0).all() or "urnn" in cell  # which has no derivative there


@pytest.mark.parametrize("nonlinearity", ["relu", "leaky_relu"])
def test_identity_at_the_start(nonlinearity):
    irnn = recurrent_layer("irnn", 3, 8, num_layers=2, nonlinearity=nonlinearity)
    assert not irnn(torch.zeros(1, 5, 3))[0].any()  # no bias either
    recurrent = [p for name, p in irnn.named_parameters() if "weight_hh" in name]
    assert len(recurrent) == 2
    for weight in recurrent:
        torch.testing.assert_close(weight.detach(), torch.eye(8))


def test_no_radius_lets_the_singular_values_free():
    for cell in ("spectral-rnn", "spectral-lstm"):
        layer = recurrent_layer(cell, 3, 8, reflectors=4, radius=None)
        assert {type(p.sigma_map) for _, p in svd_parametrizations(layer)} == {Unconstrained}
    with pytest.raises(ValueError, match="radius: expected a number for 'factorized-rnn', got None"):
        recurrent_layer("factorized-rnn", 3, 8, radius=None)


def test_recurrent_matrices():
    ornn = recurrent_layer("ornn", 3, 8, reflectors=4)
    weight = ornn.weight_hh_l0.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(8))
    spectral = recurrent_layer("spectral-rnn", 3, 8, reflectors=4, radius=0.2)
    assert spectral.parametrizations.weight_hh_l0[0].sigma_map.radius == 0.2
    assert spectral_margin(spectral, "weight_hh_l0") <= 0.2
    lstm = recurrent_layer("spectral-lstm", 3, 8, num_layers=2, reflectors=4, radius=0.2)
    for layer in lstm.layers:
        assert singular_values(layer, "weight_hh_l0").shape == (4, 8)
        for gate in layer.weight_hh_l0.detach().chunk(4):
            torch.testing.assert_close(torch.linalg.svdvals(gate), torch.ones(8))


@pytest.mark.parametrize(
    ("cell", "usual"),
    [("rnn", "tanh"), ("irnn", "relu"), ("ornn", "relu"), ("spectral-rnn", "relu"), ("factorized-rnn", "relu")],
)
def test_activations(cell, usual):
    def activation(**kwargs) -> str:
        layer = recurrent_layer(cell, 3, 8, reflectors=4, **kwargs)
        return (layer if hasattr(layer, "nonlinearity") else layer.layers[0]).nonlinearity

    assert activation() == usual
    for nonlinearity in ("tanh", "relu", "leaky_relu"):
        assert activation(nonlinearity=nonlinearity) == nonlinearity


def test_plain_weights_with_leaky_relu_are_torchs_at_slope_zero():
    torch.manual_seed(0)
    leaky = recurrent_layer("rnn", 3, 8, nonlinearity="leaky_relu", negative_slope=0.0)
    nn.init.normal_(leaky.bias_l0)
    assert not any("parametrizations" in name for name, _ in leaky.named_parameters())
    reference = nn.RNN(3, 8, nonlinearity="relu", batch_first=True)
    bias = {"bias_ih_l0": leaky.bias_l0.detach(), "bias_hh_l0": torch.zeros(8)}
    weights = {name: leaky.get_parameter(name).detach() for name in ("weight_ih_l0", "weight_hh_l0")}
    reference.load_state_dict(weights | bias)
    input = torch.randn(2, 5, 3)
    torch.testing.assert_close(leaky(input), reference(input))


@pytest.mark.parametrize("cell", ["ornn", "spectral-rnn"])
def test_slope_of_leaky_relu(cell):
    layer = recurrent_layer(cell, 3, 8, reflectors=4, nonlinearity="leaky_relu", negative_slope=0.25)
    input = torch.randn(1, 1, 3)
    before = input[0] @ layer.weight_ih_l0.T + layer.bias_l0
    expected = torch.where(before < 0, 0.25 * before, before)
    torch.testing.assert_close(layer(input)[0][0], expected)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"cell: expected one of rnn, irnn, gru, lstm.*, got 'mlp'"):
        recurrent_layer("mlp", 3, 8)
    with pytest.raises(ValueError, match="nonlinearity: expected None for 'lstm', got 'relu'"):
        recurrent_layer("lstm", 3, 8, nonlinearity="relu")
    with pytest.raises(ValueError, match="nonlinearity: expected None or tanh or relu or leaky_relu for 'rnn', got"):
        recurrent_layer("rnn", 3, 8, nonlinearity="gelu")
    with pytest.raises(ValueError, match="num_layers: expected 1 for 'urnn', got 2"):
        recurrent_layer("urnn", 3, 8, num_layers=2)
    with pytest.raises(ValueError, match="num_layers: expected at least 1 for 'gru', got 0"):
        recurrent_layer("gru", 3, 8, num_layers=0)
    with pytest.raises(ValueError, match="reflectors"):
        recurrent_layer("spectral-rnn", 3, 8, reflectors=9)


def test_the_orthogonal_matrix_of_ornn_is_a_product_of_reflectors_of_u():
    layer = recurrent_layer("ornn", 3, 8, reflectors=4)
    [(_, p)] = svd_parametrizations(layer)
    assert p.v is None
    exact = reflector_product(p.u.detach())
    torch.testing.assert_close(p.parametrization_list().detach().double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm", "spectral-lstm"])
def test_forget_gates_of_the_papers_start_are_open_and_no_other_bias_is_there(cell):
    lstm = recurrent_layer(cell, 3, 8, num_layers=2, reflectors=4, start="paper")
    for layer in lstm.layers:
        bias = layer.weight_ih_l0[:, -1].detach()
        assert bias.tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16


@pytest.mark.parametrize("nonlinearity", ["relu", "leaky_relu"])
def test_irnn_of_the_papers_start_is_orthogonal_without_a_bias(nonlinearity):
    torch.manual_seed(0)
    irnn = recurrent_layer("irnn", 3, 8, num_layers=2, nonlinearity=nonlinearity, start="paper")
    assert not irnn(torch.zeros(1, 5, 3))[0].any()
    weights = [p.detach() for name, p in irnn.named_parameters() if "weight_hh" in name]
    assert len(weights) == 2
    for weight in weights:
        torch.testing.assert_close(weight @ weight.T, torch.eye(8))
        assert not torch.allclose(weight, torch.eye(8))


@pytest.mark.parametrize("cell", CELLS)
def test_every_cell_has_the_papers_start(cell):
    torch.manual_seed(0)
    recurrent_layer(cell, 3, 8, reflectors=4, start="paper")
    with pytest.raises(ValueError, match="start: expected torch or paper, got 'zero'"):
        recurrent_layer(cell, 3, 8, reflectors=4, start="zero")
