"""How well a network can generalize, from the norms of its weights: Theorem 5 and Corollary 1 of the paper.

With probability 1 - δ over the N samples that a network is trained on, for a γ > 0 chosen beforehand,

    share of errors on new samples ≤ margin loss on the training samples + O(gap),

with the margin loss of Definition 1 (:class:`~spectral_param.bounds.MarginLoss`). The functions here give the gap
without the constant that the O hides: to compare networks, or one network over its training, not to certify it.

Note [From perturbations to generalization]
    Take a network whose output moves by at most C Σ‖δW_i‖₂ when its weights move by δW_i. It still classifies what it
    classified with margin γ after Gaussian noise of deviation s ~ γ / (C √(ξ ln ξ)) on its weights, ξ the greatest
    width, since such noise has ‖δW_i‖₂ ~ s √(ξ ln ξ). The PAC-Bayes bound (McAllester, 2003) then gives
    √((Σ‖W_i‖_F² / s² + ln(N/δ)) / N); that s depends on the weights costs a union over a grid, and a constant. What is
    left is C:

    - d layers with ReLU, inputs ‖x‖ ≤ B, ‖δW_i‖ ≤ ‖W_i‖ / d (Neyshabur, Bhojanapalli, Srebro, "A PAC-Bayesian approach
      to spectrally-normalized margin bounds for neural networks", 2018, Lemma 2):
      ‖δf‖ ≤ e B Π‖W_i‖ Σ‖δW_i‖/‖W_i‖.
    - h_t = φ(W h_{t-1} + M x_t), h_0 = 0, f = Y h_T, with |φ(z)| ≤ |z|, slopes up to 1, ‖x_t‖ ≤ B,
      ‖δW‖ ≤ max(1, ‖W‖) / T, ‖δY‖ ≤ max(1, ‖Y‖): summing ‖δh_t‖ ≤ ‖W + δW‖ ‖δh_{t-1}‖ + ‖δW‖ ‖h_{t-1}‖ + ‖δM‖ B over t,
      ‖δf‖ ≤ 2e B T² √ζ (‖δW‖ + ‖δM‖ + ‖δY‖), √ζ = max(1, ‖W‖)^{T-1} max(1, ‖M‖) max(1, ‖Y‖).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spectral_param.bounds.norms import both_norms
from spectral_param.bounds.unrolled import check_recurrent, greatest_slope
from spectral_param.nn.spectral_rnn import SpectralRNN

_PASSES = (nn.Identity, nn.Flatten, nn.Dropout, nn.ReLU)


def rnn_generalization_gap(
    rnn: nn.RNN | SpectralRNN,
    readout: nn.Linear,
    *,
    steps: int,
    input_norm: float,
    margin: float,
    samples: int,
    delta: float = 0.05,
    over_ranges: bool = False,
) -> float:
    """The gap of Theorem 5 for a recurrent classifier ``Y h_T``, without the constant of its O.

    ``√((B² T⁴ ξ ln ξ ζ (‖W‖_F² + ‖M‖_F² + ‖Y‖_F²) / γ² + ln(N/δ)) / N)`` with
    ``ζ = max(1, ‖W‖^{2T-2}) max(1, ‖M‖²) max(1, ‖Y‖²)``, ‖·‖ the greatest singular value and ξ the greatest of the
    sizes of input, state and output. A bias counts as a column of M or Y whose input is 1.

    With ``over_ranges`` it is Corollary 1: a registered weight counts at the greatest that its σ map lets it become, so
    that the gap holds throughout training. With ``Band(r)`` for W that is ‖W‖ ≤ 1 + r, and where r is of the order of
    1/T the gap grows with a power of T, not exponentially.

    Args:
        rnn: ``nn.RNN`` or :class:`~spectral_param.nn.SpectralRNN` of one layer and direction, its first state zero,
            slopes up to 1.
        readout: the layer from h_T to the classes.
        steps: T.
        input_norm: B, the greatest ‖x_t‖.
        margin: γ > 0.
        samples: N, how many it is trained on.
        delta: δ, the probability with which the bound may fail, between 0 and 1.
        over_ranges: see above. Plain weights count as they are; σ without a bound give infinity.

    Returns:
        The gap, at least 0. Beyond 1 it says nothing.

    Raises:
        TypeError: if ``rnn`` or ``readout`` is another kind of module.
        ValueError: if ``rnn`` is not as described, ``readout`` does not fit, or a number is out of range.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Fixed
        >>> from spectral_param.bounds import rnn_generalization_gap
        >>> from spectral_param.nn import SpectralRNN
        >>> rnn, readout = SpectralRNN(1, 32, sigma=Fixed(), bias=False), nn.Linear(32, 2, bias=False)
        >>> gaps = [
        ...     rnn_generalization_gap(rnn, readout, steps=steps, input_norm=1.0, margin=1.0, samples=10**6)
        ...     for steps in (10, 100)]
        >>> round(gaps[1] / gaps[0])
        100
    """
    check_recurrent(rnn, steps)
    _check_layer(rnn)
    if not isinstance(readout, nn.Linear):
        raise TypeError(f"readout: expected a torch.nn.Linear, got {type(readout).__name__}.")
    if readout.in_features != rnn.hidden_size:
        raise ValueError(f"readout: expected {rnn.hidden_size} features, the state's, got {readout.in_features}.")
    _check_numbers(input_norm, margin, samples, delta)

    biases: list[Tensor] = [b for name, b in rnn.named_parameters(recurse=False) if name.startswith("bias")]
    w, w_frobenius = both_norms(rnn, "weight_hh_l0", over_range=over_ranges)
    bias = torch.stack(biases).sum(0) if biases else None
    m, m_frobenius = _with_bias(*both_norms(rnn, "weight_ih_l0", over_range=over_ranges), bias)
    y, y_frobenius = _with_bias(*both_norms(readout, over_range=over_ranges), readout.bias)

    reach = input_norm**2 + (1 if biases or readout.bias is not None else 0)
    width = max(rnn.input_size, rnn.hidden_size, readout.out_features)
    zeta = w.clamp_min(1) ** (2 * steps - 2) * m.clamp_min(1).square() * y.clamp_min(1).square()
    size = w_frobenius.square() + m_frobenius.square() + y_frobenius.square()
    return _gap(reach * steps**4 * width * math.log(width) * zeta * size, margin, samples, samples / delta)


def mlp_generalization_gap(
    model: nn.Sequential,
    *,
    input_norm: float,
    margin: float,
    samples: int,
    delta: float = 0.05,
    over_ranges: bool = False,
) -> float:
    """The gap of a feed-forward classifier without biases, without the constant of its O (Neyshabur et al., Theorem 1).

    ``√((B² d² ξ ln(dξ) Π‖W_i‖² Σ‖W_i‖_F²/‖W_i‖² / γ² + ln(dN/δ)) / N)`` for d layers, ‖·‖ the greatest singular value
    and ξ the greatest width.

    Args:
        model: linear layers without bias, with ReLU between them; flattening and dropout change nothing.
        input_norm: B, the greatest ‖x‖.
        margin: as in :func:`rnn_generalization_gap`, like those that follow.
        samples: N.
        delta: δ.
        over_ranges: registered weights at the greatest that their σ maps let them become.

    Returns:
        The gap, at least 0. Beyond 1 it says nothing.

    Raises:
        TypeError: if ``model`` is no ``nn.Sequential``, or a module in it none of these.
        ValueError: if there is no linear layer, a layer has a bias, or a number is out of range.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Band
        >>> from spectral_param.bounds import mlp_generalization_gap
        >>> from spectral_param.nn import SVDLinear
        >>> first, last = SVDLinear(64, 32, bias=False, sigma=Band(0.1)), nn.Linear(32, 2, bias=False)
        >>> model = nn.Sequential(first, nn.ReLU(), last)
        >>> now, ever = (
        ...     mlp_generalization_gap(model, input_norm=1.0, margin=1.0, samples=10**6, over_ranges=over_ranges)
        ...     for over_ranges in (False, True))
        >>> now < ever
        True
    """
    if not isinstance(model, nn.Sequential):
        raise TypeError(f"model: expected a torch.nn.Sequential, got {type(model).__name__}.")
    layers = _linear_layers(model)
    _check_numbers(input_norm, margin, samples, delta)
    depth = len(layers)
    width = max(max(layer.in_features, layer.out_features) for layer in layers)
    norms, frobenius = (
        torch.stack(n) for n in zip(*(both_norms(f, over_range=over_ranges) for f in layers), strict=True)
    )
    others = ~torch.eye(depth, dtype=torch.bool)  # Π over all but one, since a norm may be zero
    products = torch.where(others, norms.square(), 1.0).prod(-1)
    capacity = input_norm**2 * depth**2 * width * math.log(depth * width) * (frobenius.square() * products).sum()
    return _gap(capacity, margin, samples, depth * samples / delta)


def _gap(capacity: Tensor, margin: float, samples: int, trials: float) -> float:
    return math.sqrt((capacity.item() / margin**2 + math.log(trials)) / samples)


def _with_bias(norm: Tensor, frobenius: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Norms of [W, b]: the first is a bound, √(‖W‖² + ‖b‖²)."""
    if bias is None:
        return norm, frobenius
    length = torch.linalg.vector_norm(bias.detach().to("cpu", torch.float64))
    return torch.hypot(norm, length), torch.hypot(frobenius, length)


def _linear_layers(model: nn.Sequential) -> list[nn.Linear]:
    layers: list[nn.Linear] = []
    for module in model:
        if isinstance(module, nn.Linear):
            if module.bias is not None:
                raise ValueError(f"model: expected layers without bias, got {module}.")
            layers.append(module)
        elif not isinstance(module, _PASSES):
            raise TypeError(f"model: expected linear layers and ReLU, got {type(module).__name__}.")
    if not layers:
        raise ValueError("model: expected a linear layer, got none.")
    return layers


def _check_layer(rnn: nn.RNN | SpectralRNN) -> None:
    if rnn.num_layers != 1:
        raise ValueError(f"rnn: expected one layer, got num_layers={rnn.num_layers}.")
    if getattr(rnn, "initial_state", None) is not None:
        raise ValueError("rnn: expected a first state of zero, got one that is trained.")
    if greatest_slope(rnn) > 1:
        raise ValueError(f"rnn: expected slopes up to 1, got negative_slope={greatest_slope(rnn)}.")


def _check_numbers(input_norm: float, margin: float, samples: int, delta: float) -> None:
    if not 0 <= input_norm < math.inf:
        raise ValueError(f"input_norm: expected a finite number of at least 0, got {input_norm}.")
    if not 0 < margin < math.inf:
        raise ValueError(f"margin: expected a finite positive number, got {margin}.")
    if samples < 1:
        raise ValueError(f"samples: expected at least 1, got {samples}.")
    if not 0 < delta < 1:
        raise ValueError(f"delta: expected a number between 0 and 1, got {delta}.")
