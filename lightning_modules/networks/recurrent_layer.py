"""The recurrent layers that the paper compares, by name."""

from typing import Literal, get_args

from torch import nn

from lightning_modules.networks.factorized_rnn import FactorizedRNN
from lightning_modules.networks.one_bias import OneBias
from lightning_modules.networks.unitary_rnn import FullUnitary, RestrictedUnitary, UnitaryRNN
from spectral_param import Band, Fixed, Unconstrained, register_svd_parametrization, remove_svd_parametrization
from spectral_param.nn import SpectralRNN

Cell = Literal[
    "rnn",
    "irnn",
    "gru",
    "lstm",
    "ornn",
    "spectral-rnn",
    "spectral-lstm",
    "urnn",
    "full-capacity-urnn",
    "factorized-rnn",
]
Nonlinearity = Literal["tanh", "relu", "leaky_relu"]

# the usual one first
ACTIVATIONS: dict[Cell, tuple[Nonlinearity, ...]] = {
    "rnn": ("tanh", "relu", "leaky_relu"),
    "irnn": ("relu", "tanh", "leaky_relu"),
    "gru": (),
    "lstm": (),
    "ornn": ("relu", "tanh", "leaky_relu"),
    "spectral-rnn": ("relu", "tanh", "leaky_relu"),
    "spectral-lstm": (),
    "urnn": (),
    "full-capacity-urnn": (),
    "factorized-rnn": ("relu", "tanh", "leaky_relu"),
}
SINGLE_LAYER = ("urnn", "full-capacity-urnn", "factorized-rnn")
GATES = 4


def recurrent_layer(
    cell: Cell,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    dropout: float = 0.0,
    reflectors: int = 16,
    radius: float | None = 0.01,
    nonlinearity: Nonlinearity | None = None,
    negative_slope: float = 0.01,
    learn_initial_state: bool = False,
) -> nn.Module:
    """Builds recurrent layers with one bias each, as counted in Table 4 of the paper.

    All are called alike: ``output, state = layer(input, hx)`` with ``input`` of shape ``(batch, length, input_size)``
    and ``output`` of shape ``(batch, length, output_features(cell, hidden_size))``.

    Args:
        cell: "rnn" is :class:`torch.nn.RNN`, with leaky_relu one of ours, whose bias starts at zero; "irnn" the same
            with a recurrent matrix that starts at the identity and a bias that starts at zero; "gru" and "lstm" are
            torch's too; "ornn" has an orthogonal recurrent matrix, a product of reflectors; "spectral-rnn" one in
            SVD form; "spectral-lstm" is an LSTM whose four recurrent matrices are in SVD form; "urnn",
            "full-capacity-urnn" and "factorized-rnn" are the systems that Table 2 of the paper compares with.
        input_size: features of a step.
        hidden_size: size n of the state; of a uRNN, whose states are complex, they count twice.
        num_layers: layers, each fed with the states of the one before; the last three have one only.
        dropout: share of states dropped between layers in training.
        reflectors: reflectors of U and of V ("spectral-…"), or of U alone ("ornn"), at most n.
        radius: radius r of the band [1 - r, 1 + r] that holds σ ("spectral-…", "factorized-rnn");
            None lets σ free ("spectral-…").
        nonlinearity: activation; None is tanh for "rnn" and relu for the others. "gru", the LSTMs and the uRNNs
            have no choice.
        negative_slope: slope of leaky_relu below zero.
        learn_initial_state: whether the state before the first step is trained. It starts at zero, that of a uRNN
            at random.

    Raises:
        ValueError: if ``cell`` is unknown or does not have that ``nonlinearity`` or ``num_layers``.

    Example:
        >>> import torch
        >>> layer = recurrent_layer("spectral-rnn", 2, 32)
        >>> output, state = layer(torch.zeros(8, 100, 2))
        >>> output.shape
        torch.Size([8, 100, 32])
    """
    if cell not in get_args(Cell):
        raise ValueError(f"cell: expected one of {', '.join(get_args(Cell))}, got {cell!r}.")
    if nonlinearity not in (None, *ACTIVATIONS[cell]):
        expected = " or ".join(("None", *ACTIVATIONS[cell]))
        raise ValueError(f"nonlinearity: expected {expected} for {cell!r}, got {nonlinearity!r}.")
    if num_layers < 1 or (num_layers > 1 and cell in SINGLE_LAYER):
        expected = "1" if cell in SINGLE_LAYER else "at least 1"
        raise ValueError(f"num_layers: expected {expected} for {cell!r}, got {num_layers}.")
    if cell in ("urnn", "full-capacity-urnn"):
        recurrence = RestrictedUnitary(hidden_size) if cell == "urnn" else FullUnitary(hidden_size)
        return UnitaryRNN(recurrence, input_size, hidden_size, learn_initial_state)
    stack = (input_size, hidden_size, num_layers, dropout, learn_initial_state)
    sigma = Unconstrained() if radius is None else Band(radius)
    if cell == "gru":
        return OneBias(nn.GRU, *stack)
    if cell in ("lstm", "spectral-lstm"):
        lstm = OneBias(nn.LSTM, *stack)
        for layer in lstm.layers if cell == "spectral-lstm" else ():
            register_svd_parametrization(
                layer, "weight_hh_l0", chunks=GATES, reflectors=reflectors, sigma=sigma, init="orthogonal"
            )
        return lstm

    activation = nonlinearity or ACTIVATIONS[cell][0]
    if cell == "factorized-rnn":
        if radius is None:
            raise ValueError("radius: expected a number for 'factorized-rnn', got None.")
        return FactorizedRNN(input_size, hidden_size, radius, activation, negative_slope, learn_initial_state)
    if cell in ("rnn", "irnn") and activation != "leaky_relu":
        rnn = OneBias(nn.RNN, *stack, nonlinearity=activation)
        for layer in rnn.layers if cell == "irnn" else ():
            nn.init.eye_(layer.get_parameter("weight_hh_l0"))
            nn.init.zeros_(layer.get_parameter("weight_ih_l0").data[:, -1])  # the bias
        return rnn
    turns: dict[str, int | tuple[int, int]] = {"spectral-rnn": reflectors, "ornn": (reflectors, 0)}
    spectral = SpectralRNN(
        input_size,
        hidden_size,
        num_layers,
        activation,
        batch_first=True,
        dropout=dropout,
        reflectors=turns.get(cell, 1),
        sigma=sigma if cell == "spectral-rnn" else Fixed(1.0),
        negative_slope=negative_slope,
        learn_initial_state=learn_initial_state,
    )
    return spectral if cell in turns else _with_plain_weights(spectral, identity=cell == "irnn")


def output_features(cell: Cell, hidden_size: int) -> int:
    """Returns the features of a layer's output: n, and 2 n where states are complex.

    Example:
        >>> output_features("lstm", 128), output_features("urnn", 128)
        (128, 256)
    """
    return 2 * hidden_size if cell in ("urnn", "full-capacity-urnn") else hidden_size


def _with_plain_weights(rnn: SpectralRNN, identity: bool) -> nn.Module:
    """A simple recurrent network that torch has not: with leaky ReLU."""
    remove_svd_parametrization(rnn)
    rnn.reset_parameters()
    for layer in range(rnn.num_layers if identity else 0):
        nn.init.eye_(rnn.get_parameter(f"weight_hh_l{layer}"))
    return rnn
