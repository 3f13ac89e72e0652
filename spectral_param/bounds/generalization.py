"""How well a network can generalize, from the norms of its weights: Theorem 5 and Corollary 1 of the paper.

With probability 1 - δ over the N samples that a network is trained on, for a γ > 0 chosen beforehand,

    share of errors on new samples ≤ margin loss on the training samples + O(gap),

with the margin loss of Definition 1 (:class:`~spectral_param.bounds.MarginLoss`). The functions here give the gap
without the constant that the O hides: to compare networks, or one network over its training, not to certify it.

Note [From perturbations to generalization]
    If the output of a network moves by at most γ/4 under random noise on its weights, with probability 1/2 or more,
    then the PAC-Bayes bound (McAllester, 2003; the paper's Lemma 3) gives √((KL + ln(6N/δ)) / N), times 4. For Gaussian
    noise with deviation s_i on W_i, ‖δW_i‖₂ ~ s_i √(ξ ln ξ) with ξ the greatest width, and KL = Σ‖W_i‖_F² / 2s_i². That
    s_i depends on the weights costs a union over a grid, and a constant. What is left is how far the output moves:

    - d layers with ReLU, inputs ‖x‖ ≤ B, ‖δW_i‖ ≤ ‖W_i‖ / d (Neyshabur, Bhojanapalli, Srebro, "A PAC-Bayesian approach
      to spectrally-normalized margin bounds for neural networks", 2018, their Lemma 2):
      ‖δf‖ ≤ e B Π‖W_i‖ Σ‖δW_i‖/‖W_i‖.
    - h_t = φ(W h_{t-1} + M x_t), h_0 = 0, f = Y h_T, with ``|φ(z)| ≤ |z|``, slopes up to 1, ‖x_t‖ ≤ B,
      ‖δW‖ ≤ max(1, ‖W‖) / T (the paper's Lemma 2; it has ‖W‖ / T, which a small W does not leave room for):
      ‖δf‖ ≤ c B T μ (T ‖Y‖ ‖M‖ ‖δW‖ + ‖Y‖ ‖δM‖ + ‖M‖ ‖δY‖), μ = max(1, ‖W‖)^{T-1}, c = 2e for ‖δY‖ ≤ ‖Y‖.
      Its first line, on the activation, is false as printed: W = M = φ' = 1, T = 10, δW = 0.1 move h_T by 5.9, for
      which it has 1.2. What the paper proves, and goes on with, is B T e (T ‖M‖ ‖δW‖ + ‖δM‖) μ.

    Two choices of noise (``noise``):

    - "scaled": s/T on W, s‖M‖ on M, s‖Y‖ on Y. Each of the three terms is then B T μ ‖M‖ ‖Y‖ s √(ξ ln ξ), so
      s ~ γ / (B T μ ‖M‖ ‖Y‖ √(ξ ln ξ)) and KL ~ (T² ‖W‖_F² + ‖M‖_F²/‖M‖² + ‖Y‖_F²/‖Y‖²) / s²: Theorem 5 as stated, over
      a grid for each of the three norms. ‖M‖, ‖Y‖ ≥ 1, which the paper assumes, is not needed.
    - "equal": s on each. Then s ~ γ / (B T² √ζ √(ξ ln ξ)) with ζ = μ² max(1, ‖M‖²) max(1, ‖Y‖²), and
      KL ~ (‖W‖_F² + ‖M‖_F² + ‖Y‖_F²) / s². This is the noise of the proof that the paper prints, whose last step to the
      statement does not follow from it: it has T⁴ for M and Y too, and does not divide by their norms.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from spectral_param.bounds.known_call import check_known, known_calls
from spectral_param.bounds.norms import both_norms
from spectral_param.bounds.unrolled import check_recurrent, greatest_slope
from spectral_param.nn.spectral_rnn import SpectralRNN
from spectral_param.nn.svd_linear import SVDLinear

_SEQUENTIAL = known_calls(nn.Sequential)
_LINEAR = known_calls(nn.Linear, SVDLinear)
_PASSES = known_calls(nn.Identity, nn.Flatten, nn.Dropout, nn.ReLU)


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
    noise: Literal["scaled", "equal"] = "scaled",
) -> float:
    """The gap of Theorem 5 for a recurrent classifier ``Y h_T``, without the constant of its O.

    ``√((B² T² ξ ln ξ · max(1, ‖W‖^{2T-2}) ‖M‖² ‖Y‖² (T² ‖W‖_F² + ‖M‖_F²/‖M‖² + ‖Y‖_F²/‖Y‖²) / γ² + ln(TN/δ)) / N)``,
    ‖·‖ the greatest singular value and ξ the greatest of the sizes of input, state and output, which the paper has
    equal. Biases are absorbed, as in the paper: that of the recurrence is a column of M whose input is 1; for that of
    the readout, a column of Y, the state has one entry more, which M keeps at 1.

    With ``over_ranges`` it is Corollary 1: a registered weight counts at the greatest that its σ map lets it become, so
    that the gap holds throughout training. With ``Band(r)`` for W that is ‖W‖ ≤ 1 + r: the term of W is the corollary's
    ``B² T⁴ ξ² ln ξ (1 + r)^{2T} ‖M‖² ‖Y‖² / γ²``, and the other two, which it leaves to its O, at most 2/T² of that.
    Where r is of the order of 1/T the gap grows with a power of T, not exponentially.

    With ``noise="equal"`` it is another gap, from the noise of the paper's printed proof:
    ``√((B² T⁴ ξ ln ξ ζ (‖W‖_F² + ‖M‖_F² + ‖Y‖_F²) / γ² + ln(N/δ)) / N)`` with
    ``ζ = max(1, ‖W‖^{2T-2}) max(1, ‖M‖²) max(1, ‖Y‖²)``; a bias is a column of M or Y whose input is 1. Both are
    derived in the note at the top of this file. Before there was ``noise`` this one was what the function gave.

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
        noise: ``"scaled"`` for Theorem 5 as stated, or ``"equal"``.

    Returns:
        The gap, at least 0. Beyond 1 it says nothing.

    Raises:
        TypeError: if ``rnn`` or ``readout`` is another kind of module, has a ``forward`` of its own, or hooks.
        ValueError: if ``rnn`` is not as described, ``readout`` does not fit, a number is out of range, or there is no
            such ``noise``.

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
    check_known("readout", readout, _LINEAR)
    if readout.in_features != rnn.hidden_size:
        raise ValueError(f"readout: expected {rnn.hidden_size} features, the state's, got {readout.in_features}.")
    _check_numbers(input_norm, margin, samples, delta)
    if noise not in ("scaled", "equal"):
        raise ValueError(f"noise: expected 'scaled' or 'equal', got {noise!r}.")

    biases: list[Tensor] = [b for name, b in rnn.named_parameters(recurse=False) if name.startswith("bias")]
    w, w_frobenius = both_norms(rnn, "weight_hh_l0", over_range=over_ranges)
    bias = torch.stack(biases).sum(0) if biases else None
    m, m_frobenius = _with_bias(*both_norms(rnn, "weight_ih_l0", over_range=over_ranges), bias)
    y, y_frobenius = _with_bias(*both_norms(readout, over_range=over_ranges), readout.bias)

    reach = input_norm**2 + (1 if biases or readout.bias is not None else 0)
    width = max(rnn.input_size, rnn.hidden_size, readout.out_features)
    factor = reach * steps**2 * width * math.log(width) * w.clamp_min(1) ** (2 * steps - 2)
    if noise == "equal":
        size = w_frobenius.square() + m_frobenius.square() + y_frobenius.square()
        zeta = m.clamp_min(1).square() * y.clamp_min(1).square()
        return _gap(factor * steps**2 * zeta * size, margin, samples, samples / delta)
    if readout.bias is not None:  # [M b; 0 1]
        m, m_frobenius = (norm.square().add(1).sqrt() for norm in (m, m_frobenius))
    size = (steps * w_frobenius * m * y).square() + (m_frobenius * y).square() + (m * y_frobenius).square()
    return _gap(factor * size, margin, samples, steps * samples / delta)


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
        TypeError: if ``model`` is no ``nn.Sequential``, a module in it none of these, or one has a ``forward`` of its
            own, or hooks.
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
    check_known("model", model, _SEQUENTIAL)
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
        check_known("model", module, _LINEAR | _PASSES)
        if isinstance(module, nn.Linear):
            if module.bias is not None:
                raise ValueError(f"model: expected layers without bias, got {module}.")
            layers.append(module)
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
