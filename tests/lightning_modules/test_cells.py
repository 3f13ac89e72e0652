import pytest
import torch

from lightning_modules import SequenceClassifier
from lightning_modules.cells import recurrent_layer
from spectral_param import spectral_margin
from spectral_param.nn import SpectralRNN

CELLS = ["rnn", "irnn", "lstm", "ornn", "spectral-rnn"]

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


@pytest.mark.parametrize("cell", CELLS)
def test_all_are_called_alike(cell):
    layer = recurrent_layer(cell, 3, 8, reflectors=4)
    output, _ = layer(torch.randn(2, 5, 3))
    assert output.shape == (2, 5, 8)
    # a sequence's answer depends on no other sequence of the batch: batch comes first
    input = torch.randn(2, 5, 3)
    alone, _ = layer(input[:1])
    torch.testing.assert_close(layer(input)[0][:1], alone)


@pytest.mark.parametrize("cell", CELLS)
def test_initial_state_on_request(cell):
    without, trained = (recurrent_layer(cell, 3, 8, reflectors=4, learn_initial_state=learn) for learn in (False, True))
    states = 2 if cell == "lstm" else 1
    count = sum(p.numel() for p in trained.parameters())
    assert count - sum(p.numel() for p in without.parameters()) == states * 8
    assert trained.initial_state.shape == (states, 8)
    assert (trained.initial_state == 0).all()


def test_recurrent_matrices():
    torch.testing.assert_close(recurrent_layer("irnn", 3, 8).layer.weight_hh_l0.detach(), torch.eye(8))
    ornn = recurrent_layer("ornn", 3, 8, reflectors=4)
    weight = ornn.weight_hh_l0.detach()
    torch.testing.assert_close(weight @ weight.T, torch.eye(8))
    spectral = recurrent_layer("spectral-rnn", 3, 8, reflectors=4, radius=0.2)
    assert spectral.parametrizations.weight_hh_l0[0].sigma_map.radius == 0.2
    assert spectral_margin(spectral, "weight_hh_l0") <= 0.2


@pytest.mark.parametrize(
    ("cell", "usual"),
    [("rnn", "tanh"), ("irnn", "relu"), ("ornn", "relu"), ("spectral-rnn", "relu")],
)
def test_activations(cell, usual):
    def activation(**kwargs) -> str:
        layer = recurrent_layer(cell, 3, 8, reflectors=4, **kwargs)
        return layer.nonlinearity if isinstance(layer, SpectralRNN) else layer.layer.nonlinearity

    assert activation() == usual
    assert activation(nonlinearity="tanh") == "tanh"
    assert activation(nonlinearity="relu") == "relu"


@pytest.mark.parametrize("cell", ["ornn", "spectral-rnn"])
def test_slope_of_leaky_relu(cell):
    layer = recurrent_layer(cell, 3, 8, reflectors=4, nonlinearity="leaky_relu", negative_slope=0.25)
    input = torch.randn(1, 1, 3)
    before = input[0] @ layer.weight_ih_l0.T + layer.bias_l0
    expected = torch.where(before < 0, 0.25 * before, before)
    torch.testing.assert_close(layer(input)[0][0], expected)


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"cell: expected one of rnn, irnn, lstm.*, got 'mlp'"):
        recurrent_layer("mlp", 3, 8)
    with pytest.raises(ValueError, match="nonlinearity: expected None for 'lstm', got 'relu'"):
        recurrent_layer("lstm", 3, 8, nonlinearity="relu")
    with pytest.raises(ValueError, match="nonlinearity: expected None or tanh or relu for 'rnn', got"):
        recurrent_layer("rnn", 3, 8, nonlinearity="leaky_relu")
    with pytest.raises(ValueError, match="reflectors"):
        recurrent_layer("spectral-rnn", 3, 8, reflectors=9)
