"""The models of the tables, by their names there."""

from typing import Any

MODEL_ARGUMENTS: dict[str, dict[str, Any]] = {
    "RNN": {"cell": "rnn"},
    "IRNN": {"cell": "irnn"},
    "LSTM": {"cell": "lstm"},
    "oRNN": {"cell": "ornn"},
    "Spectral-RNN": {"cell": "spectral-rnn"},
    "uRNN": {"cell": "urnn", "hidden_size": 512},
    "full-capacity uRNN": {"cell": "full-capacity-urnn", "hidden_size": 116},
    "factorized RNN": {"cell": "factorized-rnn"},
}
# as the paper and its code have them: biases of zero, a forget gate's of one, IRNN from an orthogonal matrix, and leaky
# ReLU, of which the paper gives no slope: TensorFlow's own is 0.2
LEAKY = {"nonlinearity": "leaky_relu", "negative_slope": 0.2}
AS_IN_THE_PAPER: dict[str, dict[str, Any]] = {
    "LSTM, forget bias 1": MODEL_ARGUMENTS["LSTM"] | {"start": "paper"},
    "IRNN, orthogonal": MODEL_ARGUMENTS["IRNN"] | LEAKY | {"start": "paper"},
    **{f"{name}, leaky": MODEL_ARGUMENTS[name] | LEAKY for name in ("RNN", "oRNN", "Spectral-RNN")},
}
# each reflector drawn at random turns a layer away from the identity: with 16, 100 layers of ReLU let little through
NETWORKS: dict[str, dict[str, Any]] = {
    "MLP": {"network": "mlp"},
    "ResNet": {"network": "resnet"},
    "Spectral-MLP": {"network": "spectral-mlp", "reflectors": 4},
    "Spectral-ResNet": {"network": "spectral-resnet", "reflectors": 4},
}


def normalized(model: str) -> dict[str, Any]:
    """Returns what gives the Trainer of a model with reflectors these unit length after each step.

    So does the paper's released code; a step of Adam turns a short reflector further.
    """
    return (
        {"callbacks": [["SpectralClip", {"renormalize": True}]]} if model.startswith(("oRNN", "Spectral-RNN")) else {}
    )
