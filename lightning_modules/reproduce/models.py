"""The recurrent models of the tables, by their names there."""

from typing import Any

CELLS: dict[str, dict[str, Any]] = {
    "RNN": {"cell": "rnn"},
    "IRNN": {"cell": "irnn"},
    "LSTM": {"cell": "lstm"},
    "oRNN": {"cell": "ornn"},
    "Spectral-RNN": {"cell": "spectral-rnn"},
    "uRNN": {"cell": "urnn", "hidden_size": 512},
    "full-capacity uRNN": {"cell": "full-capacity-urnn", "hidden_size": 116},
    "factorized RNN": {"cell": "factorized-rnn"},
}
# callbacks of a Trainer: as in the paper's released code, reflectors have unit length after each step
NORMALISED: list[list[Any]] = [["SpectralClip", {"renormalize": True}]]
NETWORKS = {
    "MLP": "mlp",
    "ResNet": "resnet",
    "Spectral-MLP": "spectral-mlp",
    "Spectral-ResNet": "spectral-resnet",
}
