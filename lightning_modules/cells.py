"""The recurrent layers that the paper compares, by name."""

from typing import Literal, get_args

from torch import nn

from lightning_modules.one_bias import OneBias
from spectral_param import Band, Fixed
from spectral_param.nn import SpectralRNN

Cell = Literal["rnn", "irnn", "lstm", "ornn", "spectral-rnn"]
Nonlinearity = Literal["tanh", "relu", "leaky_relu"]


def recurrent_layer(
    cell: Cell,
    input_size: int,
    hidden_size: int,
    *,
    reflectors: int = 16,
    radius: float = 0.01,
    nonlinearity: Nonlinearity | None = None,
    negative_slope: float = 0.01,
    learn_initial_state: bool = False,
) -> nn.Module:
    """Builds one recurrent layer with one bias, as counted in Table 4 of the paper.

    All are called alike: ``output, state = layer(input)`` with ``input`` of shape
    ``(batch, length, input_size)`` and ``output`` of shape ``(batch, length, hidden_size)``.

    Args:
        cell: "rnn" is :class:`torch.nn.RNN`; "irnn" the same with a recurrent matrix that starts
            at the identity; "lstm" :class:`torch.nn.LSTM`; "ornn" has an orthogonal recurrent
            matrix, a product of reflectors; "spectral-rnn" one in SVD form.
        input_size: features of a step.
        hidden_size: size n of the state.
        reflectors: reflectors of U and of V ("spectral-rnn"), or of U alone ("ornn"), at most n.
        radius: radius r of the band [1 - r, 1 + r] that holds σ ("spectral-rnn").
        nonlinearity: activation; None is tanh for "rnn" and relu for the others. "leaky_relu" is
            there for "ornn" and "spectral-rnn"; "lstm" has no choice.
        negative_slope: slope of leaky_relu below zero.
        learn_initial_state: whether the state before the first step is trained. It starts at zero.

    Raises:
        ValueError: if ``cell`` is unknown or does not have that ``nonlinearity``.

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

    if cell == "lstm":
        return OneBias(nn.LSTM, input_size, hidden_size, learn_initial_state)
    activation = nonlinearity or ACTIVATIONS[cell][0]
    if cell in ("rnn", "irnn"):
        rnn = OneBias(nn.RNN, input_size, hidden_size, learn_initial_state, nonlinearity=activation)
        if cell == "irnn":
            nn.init.eye_(rnn.get_parameter("layer.weight_hh_l0"))
        return rnn
    return SpectralRNN(
        input_size,
        hidden_size,
        nonlinearity=activation,
        negative_slope=negative_slope,
        batch_first=True,
        reflectors=(reflectors, 0) if cell == "ornn" else reflectors,
        sigma=Fixed(1.0) if cell == "ornn" else Band(radius),
        learn_initial_state=learn_initial_state,
    )


# the usual one first
ACTIVATIONS: dict[Cell, tuple[Nonlinearity, ...]] = {
    "rnn": ("tanh", "relu"),
    "irnn": ("relu", "tanh"),
    "lstm": (),
    "ornn": ("relu", "tanh", "leaky_relu"),
    "spectral-rnn": ("relu", "tanh", "leaky_relu"),
}
