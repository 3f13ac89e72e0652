"""What plain recurrent layers start from in the paper and in its released code, where that is not torch's start."""

from typing import Literal

import torch
from torch import nn

from lightning_modules.networks.one_bias import OneBias

Start = Literal["torch", "paper"]

INPUT_DEVIATION = 0.1  # the paper has "a Gaussian distribution" and no number; its code's output layer has this one


@torch.no_grad()
def start_as_in_the_paper(cell: str, layers: nn.Module) -> None:
    """Sets the biases of "rnn", "irnn", "gru", "lstm" and "spectral-lstm" to zero, those of forget gates to one.

    The matrices of "irnn" are drawn anew: orthogonal from state to state, normal from the input. Other cells start with
    zero biases as they are, or from what their inventors say, and are left alone.

    Args:
        cell: the cell, by its name.
        layers: what :func:`~lightning_modules.networks.recurrent_layer.recurrent_layer` has built for it.
    """
    if cell not in ("rnn", "irnn", "gru", "lstm", "spectral-lstm"):
        return
    for name, parameter in layers.named_parameters():
        kind = name.split(".")[-1]
        if cell == "irnn" and kind.startswith("weight_hh"):
            nn.init.orthogonal_(parameter)
        if cell == "irnn" and kind.startswith("weight_ih"):
            nn.init.normal_(parameter, std=INPUT_DEVIATION)
        if kind == "weight_ih_l0" and isinstance(layers, OneBias):
            parameter[:, -1] = 0.0  # the bias; that of other layers is a parameter of its own, zero already
            if cell.endswith("lstm"):
                size = len(parameter) // 4
                parameter[size : 2 * size, -1] = 1.0  # torch's order is input, forget, cell, output
