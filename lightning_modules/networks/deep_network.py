"""Deep networks of equal layers: MLP and ResNet, and both with their weights in SVD form."""

from typing import Literal, get_args

from torch import nn

from spectral_param import Band
from spectral_param.nn import Residual, SVDLinear

Network = Literal["mlp", "resnet", "spectral-mlp", "spectral-resnet"]
Activation = Literal["relu", "leaky_relu", "tanh"]

# what is taken where nothing else is asked for, here and by the tasks
DEPTH = 30
WIDTH = 128
REFLECTORS = 4
RADIUS = 0.1
NEGATIVE_SLOPE = 0.01  # torch's


def deep_network(
    network: Network,
    input_size: int,
    output_size: int,
    *,
    depth: int = DEPTH,
    width: int = WIDTH,
    reflectors: int = REFLECTORS,
    radius: float = RADIUS,
    center: float | None = None,
    nonlinearity: Activation = "relu",
    negative_slope: float = NEGATIVE_SLOPE,
    dropout: float = 0.0,
) -> nn.Sequential:
    """Builds an input layer, ``depth`` layers of ``width``, and an output layer (Section 7.2 of the paper).

    Initial values: plain weights uniform as Glorot and Bengio have it, their biases zero; weights in SVD form with
    random U and V and σ at the band's centre.

    Args:
        network: "mlp" stacks layers; "resnet" blocks of two layers, ``φ(x + W₂ φ(W₁ x + b₁) + b₂)``; "spectral-…" have
            the weights of the ``depth`` layers in SVD form.
        input_size: numbers of an input.
        output_size: numbers of an output.
        depth: layers between the input and the output layer, even for "…resnet".
        width: their size.
        reflectors: reflectors of U and of V, at most ``width``. Each that is drawn at random turns a layer away from
            the identity, and deep stacks of ReLU then let little through: few learn faster.
        radius: radius of the band that holds σ.
        center: centre of the band; None: 1, and 0 in the blocks of "spectral-resnet", which start at the identity.
        nonlinearity: φ.
        negative_slope: slope of leaky_relu below zero.
        dropout: share of units dropped after the input layer and each layer or block.

    Raises:
        ValueError: if ``network`` is unknown, or ``depth`` odd where blocks have two layers.

    Example:
        >>> import torch
        >>> deep_network("spectral-mlp", 784, 10, depth=4)(torch.zeros(2, 784)).shape
        torch.Size([2, 10])
    """
    if network not in get_args(Network):
        raise ValueError(f"network: expected one of {', '.join(get_args(Network))}, got {network!r}.")
    residual = network.endswith("resnet")
    if depth < 1 or (residual and depth % 2):
        expected = "an even number" if residual else "at least 1"
        raise ValueError(f"depth: expected {expected} for {network!r}, got {depth}.")
    middle = (0.0 if residual else 1.0) if center is None else center

    def activation() -> nn.Module:
        if nonlinearity == "leaky_relu":
            return nn.LeakyReLU(negative_slope)
        return nn.ReLU() if nonlinearity == "relu" else nn.Tanh()

    def hidden() -> nn.Module:
        if network.startswith("spectral"):
            return SVDLinear(width, width, reflectors=reflectors, sigma=Band(radius, middle))
        return _linear(width, width)

    layers: list[nn.Module] = [_linear(input_size, width), activation()]
    for _ in range(depth // 2 if residual else depth):
        layers.append(nn.Dropout(dropout))
        layers.append(Residual(hidden(), activation(), hidden()) if residual else hidden())
        layers.append(activation())
    return nn.Sequential(*layers, nn.Dropout(dropout), _linear(width, output_size))


def _linear(input_size: int, output_size: int) -> nn.Linear:
    layer = nn.Linear(input_size, output_size)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
