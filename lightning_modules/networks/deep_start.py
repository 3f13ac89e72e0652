"""What the plain layers of a deep network start from."""

from typing import Literal

from torch import nn

from spectral_param import Band, remove_svd_parametrization
from spectral_param.nn import Residual, SVDLinear

Start = Literal["glorot", "he", "orthogonal", "spectral", "zero"]


def plain_layer(size: int, start: Start, reflectors: int, sigma: Band) -> nn.Linear:
    """Builds a plain layer of a deep network.

    Args:
        size: numbers of its input and output.
        start: "glorot" (Glorot and Bengio, uniform), "he" (He et al., normal, for ReLU) and "orthogonal" have biases
            of zero; "spectral" has the weight and the bias that the layer in SVD form starts from; "zero" is "glorot".
        reflectors: reflectors of U and of V of that form.
        sigma: its band.
    """
    if start == "spectral":
        in_svd_form = SVDLinear(size, size, reflectors=reflectors, sigma=sigma)
        remove_svd_parametrization(in_svd_form, "weight")
        return in_svd_form
    layer = glorot_layer(size, size)
    if start == "he":
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    elif start == "orthogonal":
        nn.init.orthogonal_(layer.weight)
    return layer


def glorot_layer(input_size: int, output_size: int) -> nn.Linear:
    """Builds a layer with a weight uniform as Glorot and Bengio have it, and a bias of zero."""
    layer = nn.Linear(input_size, output_size)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def zero_last_weights(network: nn.Module) -> None:
    """Sets the last weight of each residual block to zero, so that blocks start as the identity."""
    for block in network.modules():
        if isinstance(block, Residual):
            last = [layer for layer in block if isinstance(layer, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
