"""The recurrent layers that the paper compares, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from torch import nn

from lightning_modules.networks.factorized_rnn import FactorizedRNN
from lightning_modules.networks.one_bias import OneBias
from lightning_modules.networks.recurrent_start import Start, start_as_in_the_paper
from lightning_modules.networks.unitary_rnn import FullUnitary, RestrictedUnitary, UnitaryRNN
from spectral_param import (
    Band,
    Fixed,
    SigmaMap,
    Unconstrained,
    register_svd_parametrization,
    remove_svd_parametrization,
)
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

# what is taken where nothing else is asked for, here and by the tasks
REFLECTORS = 16
RADIUS = 0.01
NEGATIVE_SLOPE = 0.01  # torch's
START: Start = "torch"


def recurrent_layer(
    cell: Cell,
    input_size: int,
    hidden_size: int,
    *,
    num_layers: int = 1,
    dropout: float = 0.0,
    reflectors: int = REFLECTORS,
    radius: float | None = RADIUS,
    nonlinearity: Nonlinearity | None = None,
    negative_slope: float = NEGATIVE_SLOPE,
    learn_initial_state: bool = False,
    start: Start = START,
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
        start: "torch": torch's initial values, but as said above; "paper": those of
            :func:`~lightning_modules.networks.recurrent_start.start_as_in_the_paper`, say forget gates' biases of one.

    Raises:
        ValueError: if ``cell`` or ``start`` is unknown, or ``cell`` has not that ``nonlinearity`` or ``num_layers``.

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
    if start not in get_args(Start):
        raise ValueError(f"start: expected {' or '.join(get_args(Start))}, got {start!r}.")
    layers = BUILDERS[cell](
        _Wanted(
            input_size,
            hidden_size,
            num_layers,
            dropout,
            reflectors,
            radius,
            nonlinearity or next(iter(ACTIVATIONS[cell]), None),
            negative_slope,
            learn_initial_state,
        )
    )
    if start == "paper":
        start_as_in_the_paper(cell, layers)
    return layers


def output_features(cell: Cell, hidden_size: int) -> int:
    """Returns the features of a layer's output: n, and 2 n where states are complex.

    Example:
        >>> output_features("lstm", 128), output_features("urnn", 128)
        (128, 256)
    """
    return 2 * hidden_size if cell in ("urnn", "full-capacity-urnn") else hidden_size


@dataclass(frozen=True)
class _Wanted:
    """What a builder makes a layer of."""

    input_size: int
    hidden_size: int
    num_layers: int
    dropout: float
    reflectors: int
    radius: float | None
    activation: Nonlinearity | None
    negative_slope: float
    learn_initial_state: bool

    @property
    def sigma(self) -> SigmaMap:
        return Unconstrained() if self.radius is None else Band(self.radius)


def _torchs(kind: type[nn.RNN] | type[nn.GRU] | type[nn.LSTM], wanted: _Wanted, **options: str) -> OneBias:
    return OneBias(
        kind,
        wanted.input_size,
        wanted.hidden_size,
        wanted.num_layers,
        wanted.dropout,
        wanted.learn_initial_state,
        **options,
    )


def _in_svd_form(wanted: _Wanted, reflectors: int | tuple[int, int], sigma: SigmaMap) -> SpectralRNN:
    return SpectralRNN(
        wanted.input_size,
        wanted.hidden_size,
        wanted.num_layers,
        wanted.activation or "relu",
        batch_first=True,
        dropout=wanted.dropout,
        reflectors=reflectors,
        sigma=sigma,
        negative_slope=wanted.negative_slope,
        learn_initial_state=wanted.learn_initial_state,
    )


def _rnn(wanted: _Wanted) -> nn.Module:
    if wanted.activation is not None and wanted.activation != "leaky_relu":
        return _torchs(nn.RNN, wanted, nonlinearity=wanted.activation)
    rnn = _in_svd_form(wanted, 1, Fixed(1.0))  # has the leaky ReLU that torch's has not
    remove_svd_parametrization(rnn)
    rnn.reset_parameters()
    return rnn


def _irnn(wanted: _Wanted) -> nn.Module:
    rnn = _rnn(wanted)
    for name, parameter in rnn.named_parameters():
        if "weight_hh" in name:
            nn.init.eye_(parameter)
        elif isinstance(rnn, OneBias) and "weight_ih" in name:
            nn.init.zeros_(parameter.data[:, -1])  # the bias; the other kind's is zero already
    return rnn


def _spectral_lstm(wanted: _Wanted) -> nn.Module:
    lstm = _torchs(nn.LSTM, wanted)
    for layer in lstm.layers:
        register_svd_parametrization(
            layer,
            "weight_hh_l0",
            chunks=GATES,
            reflectors=wanted.reflectors,
            sigma=wanted.sigma,
            init="orthogonal",
        )
    return lstm


def _unitary(recurrence: Callable[[int], nn.Module], wanted: _Wanted) -> nn.Module:
    size = wanted.hidden_size
    return UnitaryRNN(recurrence(size), wanted.input_size, size, wanted.learn_initial_state)


def _factorized(wanted: _Wanted) -> nn.Module:
    if wanted.radius is None:
        raise ValueError("radius: expected a number for 'factorized-rnn', got None.")
    return FactorizedRNN(
        wanted.input_size,
        wanted.hidden_size,
        wanted.radius,
        wanted.activation or "relu",
        wanted.negative_slope,
        wanted.learn_initial_state,
    )


BUILDERS: dict[Cell, Callable[[_Wanted], nn.Module]] = {
    "rnn": _rnn,
    "irnn": _irnn,
    "gru": partial(_torchs, nn.GRU),
    "lstm": partial(_torchs, nn.LSTM),
    "ornn": lambda wanted: _in_svd_form(wanted, (wanted.reflectors, 0), Fixed(1.0)),
    "spectral-rnn": lambda wanted: _in_svd_form(wanted, wanted.reflectors, wanted.sigma),
    "spectral-lstm": _spectral_lstm,
    "urnn": partial(_unitary, RestrictedUnitary),
    "full-capacity-urnn": partial(_unitary, FullUnitary),
    "factorized-rnn": _factorized,
}
