"""What the tasks on vectors share: a deep network."""

import torch
from torch import Tensor

from lightning_modules.networks.deep_network import (
    DEPTH,
    NEGATIVE_SLOPE,
    RADIUS,
    REFLECTORS,
    START,
    WIDTH,
    Activation,
    Network,
    deep_network,
)
from lightning_modules.networks.deep_start import Start
from lightning_modules.tasks.base import Task
from spectral_param import together


class VectorTask(Task):
    """Answers a vector by a deep network.

    Trained by Adam; the learning rate is multiplied by ``decay`` after each epoch. Logs
    ``train_loss``, and the loss and the metrics of validation and test, say ``val_loss`` and
    ``val_accuracy``. Checkpoints load without arguments.

    Args:
        input_size: numbers of an input.
        output_size: classes, or labels.
        network: "mlp", "resnet", "spectral-mlp", "spectral-resnet" or "normed-mlp"; see
            :func:`lightning_modules.networks.deep_network.deep_network`, as for the arguments up to ``dropout``, and
            ``start``.
        depth: layers between the input and the output layer, even for "…resnet".
        width: their size.
        reflectors: reflectors of U and of V, at most ``width``.
        radius: radius of the band that holds σ.
        center: centre of the band; None: 1, and 0 for "spectral-resnet".
        nonlinearity: activation.
        negative_slope: slope of leaky_relu below zero.
        dropout: share of units dropped after the input layer and each layer or block.
        learning_rate: Adam's learning rate in the first epoch.
        decay: factor of the learning rate from epoch to epoch.
        plain_rate: whether it is the rate of a plain network, of which weights in SVD form get multiples; see
            :func:`spectral_param.parameter_groups`.
        start: what plain layers start from.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        network: Network = "spectral-mlp",
        depth: int = DEPTH,
        width: int = WIDTH,
        reflectors: int = REFLECTORS,
        radius: float = RADIUS,
        center: float | None = None,
        nonlinearity: Activation = "relu",
        negative_slope: float = NEGATIVE_SLOPE,
        dropout: float = 0.0,
        learning_rate: float = 1e-3,
        decay: float = 1.0,
        plain_rate: bool = False,
        start: Start = START,
    ) -> None:
        super().__init__()
        self.network = deep_network(
            network,
            input_size,
            output_size,
            depth=depth,
            width=width,
            reflectors=reflectors,
            radius=radius,
            center=center,
            nonlinearity=nonlinearity,
            negative_slope=negative_slope,
            dropout=dropout,
            start=start,
        )
        self.example_input_array = torch.zeros(2, input_size)

    def forward(self, input: Tensor) -> Tensor:
        """Maps ``(batch, input_size)`` to ``(batch, output_size)``."""
        if not self.training:
            return self.network(input)
        with together(self.network):  # many small weights of one shape
            return self.network(input)
