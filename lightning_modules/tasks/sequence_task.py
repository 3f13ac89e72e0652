"""What the tasks on sequences share: a recurrent network and its head."""

import torch
from torch import Tensor, nn

from lightning_modules.networks.recurrent_layer import (
    NEGATIVE_SLOPE,
    RADIUS,
    REFLECTORS,
    START,
    Cell,
    Nonlinearity,
    output_features,
    recurrent_layer,
)
from lightning_modules.networks.recurrent_start import Start
from lightning_modules.tasks.base import Task


class SequenceTask(Task):
    """Answers once for a whole sequence: recurrent layers and a linear head on the last state.

    Trained by Adam; the learning rate is multiplied by ``decay`` after each epoch. Logs
    ``train_loss``, and the loss and the metrics of validation and test, say ``val_loss`` and
    ``val_accuracy``. Checkpoints load without arguments.

    Args:
        input_size: features of a step.
        output_size: numbers, or classes, of an answer.
        cell: the recurrent layer; see :func:`lightning_modules.networks.recurrent_layer.recurrent_layer`, as for the
            arguments up to ``learn_initial_state``.
        hidden_size: size n of the state.
        num_layers: recurrent layers.
        dropout: share of states dropped between layers in training.
        reflectors: reflectors of U and of V, at most n.
        radius: radius of the band around 1 that holds σ; None lets σ free.
        nonlinearity: activation; None is the cell's usual one.
        negative_slope: slope of leaky_relu below zero.
        learn_initial_state: whether the state before the first step is trained.
        learning_rate: Adam's learning rate in the first epoch.
        decay: factor of the learning rate from epoch to epoch.
        plain_rate: whether it is the rate of a plain network, of which weights in SVD form get multiples; see
            :func:`spectral_param.parameter_groups`.
        start: "torch" or "paper", what plain recurrent layers start from.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        cell: Cell = "spectral-rnn",
        hidden_size: int = 128,
        num_layers: int = 1,
        dropout: float = 0.0,
        reflectors: int = REFLECTORS,
        radius: float | None = RADIUS,
        nonlinearity: Nonlinearity | None = None,
        negative_slope: float = NEGATIVE_SLOPE,
        learn_initial_state: bool = False,
        learning_rate: float = 1e-3,
        decay: float = 1.0,
        plain_rate: bool = False,
        start: Start = START,
    ) -> None:
        super().__init__()
        self.recurrent = recurrent_layer(
            cell,
            input_size,
            hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            reflectors=reflectors,
            radius=radius,
            nonlinearity=nonlinearity,
            negative_slope=negative_slope,
            learn_initial_state=learn_initial_state,
            start=start,
        )
        self.head = nn.Linear(output_features(cell, hidden_size), output_size)
        self.example_input_array = torch.zeros(2, 5, input_size)

    def forward(self, input: Tensor) -> Tensor:
        """Maps ``(batch, length, input_size)`` to ``(batch, output_size)``."""
        _, state = self.recurrent(input)
        last = state[0] if isinstance(state, tuple) else state  # h of an LSTM's (h, c)
        return self.head(last[-1])
