"""Deep networks of equal layers: MLP and ResNet, both also in SVD form, and an MLP under spectral norm."""

from typing import Literal, get_args

from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from lightning_modules.networks.deep_start import Start, glorot_layer, plain_layer, zero_last_weights
from spectral_param import Band
from spectral_param.nn import Residual, SVDLinear

Network = Literal["mlp", "resnet", "spectral-mlp", "spectral-resnet", "normed-mlp"]
Activation = Literal["relu", "leaky_relu", "tanh"]

# what is taken where nothing else is asked for, here and by the tasks
DEPTH = 30
WIDTH = 128
REFLECTORS = 4
RADIUS = 0.1
NEGATIVE_SLOPE = 0.01  # torch's
START: Start = "glorot"

PLAIN: tuple[Start, ...] = ("glorot", "he", "orthogonal", "spectral")
STARTS: dict[Network, tuple[Start, ...]] = {
    "mlp": PLAIN,
    "resnet": (*PLAIN, "zero"),
    "spectral-mlp": ("glorot",),
    "spectral-resnet": ("glorot",),
    "normed-mlp": PLAIN,
}


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
    start: Start = START,
) -> nn.Sequential:
    """Builds an input layer, ``depth`` layers of ``width``, and an output layer (Section 7.2 of the paper).

    Initial values: plain weights by ``start``, those of the first and the last layer uniform as Glorot and Bengio have
    it, biases zero; weights in SVD form with random U and V and σ at the band's centre.

    Args:
        network: "mlp" stacks layers; "resnet" blocks of two layers, ``φ(x + W₂ φ(W₁ x + b₁) + b₂)``; "spectral-…" have
            the weights of the ``depth`` layers in SVD form; "normed-mlp" has them divided by their largest singular
            value (:func:`torch.nn.utils.parametrizations.spectral_norm`).
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
        start: what the plain ones of the ``depth`` layers start from: "glorot", "he", "orthogonal"; "spectral", the
            weights that the SVD form of the same ``reflectors``, ``radius`` and ``center`` starts from; "zero", for
            "resnet": Glorot's, but zero for the last of each block, which starts as the identity.

    Raises:
        ValueError: if ``network`` or ``start`` is unknown, or has not the other; if ``depth`` is odd where blocks have
            two layers.

    Example:
        >>> import torch
        >>> deep_network("spectral-mlp", 784, 10, depth=4)(torch.zeros(2, 784)).shape
        torch.Size([2, 10])
    """
    if network not in get_args(Network):
        raise ValueError(f"network: expected one of {', '.join(get_args(Network))}, got {network!r}.")
    if start not in STARTS[network]:
        raise ValueError(f"start: expected {' or '.join(STARTS[network])} for {network!r}, got {start!r}.")
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
        layer = plain_layer(width, start, reflectors, Band(radius, middle))
        return spectral_norm(layer) if network == "normed-mlp" else layer

    layers: list[nn.Module] = [glorot_layer(input_size, width), activation()]
    for _ in range(depth // 2 if residual else depth):
        layers.append(nn.Dropout(dropout))
        layers.append(Residual(hidden(), activation(), hidden()) if residual else hidden())
        layers.append(activation())
    if start == "zero":
        zero_last_weights(nn.ModuleList(layers))
    return nn.Sequential(*layers, nn.Dropout(dropout), glorot_layer(width, output_size))
