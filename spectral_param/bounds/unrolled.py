"""How far the last state of a recurrent network can move when its first state or its inputs do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spectral_param.bounds.known_call import check_known, known_calls
from spectral_param.bounds.norms import operator_norm
from spectral_param.nn.spectral_rnn import SpectralRNN
from spectral_param.parametrization.lookup import registered_names

_RECURRENT = known_calls(nn.RNN, SpectralRNN)


class UnrolledBounds(NamedTuple):
    """Lipschitz constants of the last layer's last state h_T, scalars in float64 on the CPU.

    Attributes:
        initial_state: with respect to the states of all layers before the first step.
        inputs: with respect to the whole sequence of inputs.
    """

    initial_state: Tensor
    inputs: Tensor


def unrolled_lipschitz_bounds(rnn: nn.RNN | SpectralRNN, steps: int) -> UnrolledBounds:
    """Bounds the Lipschitz constants of a simple recurrent network unrolled over a number of steps.

    One layer with ``w = ‖W‖₂`` and ``m = ‖M‖₂`` has ``w^T`` with respect to h_0, the paper's bound on the gradient that
    comes back to it, and ``m √Σ w^{2(T - t)}`` with respect to x_1 … x_T. In a stack the constants of every step are
    handed down from layer to layer. Norms are Euclidean over all entries of a sample; the slope of leaky_relu counts
    where it exceeds 1. Where a weight is registered its norm is ``max |σ|``, without a decomposition. Norms are rounded
    up as in :func:`~spectral_param.bounds.lipschitz_bound`.

    Args:
        rnn: ``nn.RNN``, in one direction, or :class:`~spectral_param.nn.SpectralRNN`; as in evaluation.
        steps: T, at least 1.

    Returns:
        The two bounds, differentiable with respect to the weights.

    Raises:
        TypeError: if ``rnn`` is another kind of module, has a ``forward`` of its own, hooks, or runs with other weights
            than it shows; or ``steps`` is no integer.
        ValueError: if ``steps`` is less than 1, or ``rnn`` runs in both directions.

    Example:
        >>> from spectral_param import Band
        >>> from spectral_param.bounds import unrolled_lipschitz_bounds
        >>> from spectral_param.nn import SpectralRNN
        >>> rnn = SpectralRNN(2, 16, sigma=Band(0.01))
        >>> round(unrolled_lipschitz_bounds(rnn, steps=300).initial_state.item(), 3)
        1.0
    """
    check_recurrent(rnn, steps)
    slope = greatest_slope(rnn)
    nothing = torch.zeros((), dtype=torch.float64)
    wanted = [nothing] * (steps - 1) + [nothing + 1]  # of the layer's states, by what lies above
    initial: list[Tensor] = []
    for layer in reversed(range(rnn.num_layers)):
        w, m = (slope * operator_norm(rnn, f"weight_{kind}_l{layer}") for kind in ("hh", "ih"))
        carried, later = [], nothing
        for here in reversed(wanted):  # step by step: powers of w that overflow would meet zeros
            later = here + _times(w, later)
            carried.append(later)
        initial.append(_times(w, later))
        wanted = [_times(m, each) for each in reversed(carried)]
    return UnrolledBounds(_length(initial), _length(wanted))


def _times(norm: Tensor, constant: Tensor) -> Tensor:
    """Their product, 0 for a map to zero of whatever may be beyond all numbers."""
    return torch.where((norm == 0) & constant.isinf(), 0.0, norm * constant)


def _length(parts: Sequence[Tensor]) -> Tensor:
    """The norm of all of them together, where squares would overflow too."""
    stacked = torch.stack(list(parts))
    greatest = stacked.detach().amax()
    scale = greatest if greatest > 0 and greatest.isfinite() else 1.0
    return scale * torch.linalg.vector_norm(stacked / scale)


def greatest_slope(rnn: nn.RNN | SpectralRNN) -> float:
    """The Lipschitz constant of the nonlinearity, at least 1.

    Example:
        >>> from spectral_param.bounds.unrolled import greatest_slope
        >>> from spectral_param.nn import SpectralRNN
        >>> greatest_slope(SpectralRNN(2, 4, nonlinearity="leaky_relu", negative_slope=1.5))
        1.5
    """
    if isinstance(rnn, SpectralRNN) and rnn.nonlinearity == "leaky_relu":
        return max(1.0, abs(rnn.negative_slope))
    return 1.0


def check_recurrent(rnn: nn.Module, steps: int) -> None:
    """Raises the errors of :func:`unrolled_lipschitz_bounds`."""
    check_known("rnn", rnn, _RECURRENT)
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"steps: expected an integer, got {type(steps).__name__}.")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}.")
    if getattr(rnn, "bidirectional", False):
        raise ValueError("rnn: expected one direction, got bidirectional=True.")
    if isinstance(rnn, nn.RNN) and not registered_names(rnn):
        _check_weights(rnn)


def _check_weights(rnn: nn.RNN) -> None:
    """Torch's plain class runs with a list of its own, which what others put on a weight does not reach."""
    for name, used in zip(rnn._flat_weights_names, rnn._flat_weights, strict=True):
        if used is not getattr(rnn, name):
            raise TypeError(f"rnn: expected plain or registered weights, got {name!r} that is not what it runs with.")
