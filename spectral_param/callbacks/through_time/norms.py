"""Norms of gradients: through time, over layers, over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from spectral_param.callbacks.through_time.adjoint import RecordedCall, gradients_of


def times_of(times: int | Sequence[int], length: int) -> list[int | None]:
    """The times of a sequence that are meant: each from 0 to its length, or ``None`` beyond.

    Example:
        >>> from spectral_param.callbacks.through_time.norms import times_of
        >>> times_of(5, 100), times_of((0, 7, -1), 5)
        ([0, 25, 50, 75, 100], [0, None, 5])
    """
    if isinstance(times, int):
        return [round(i * length / max(times - 1, 1)) for i in range(times)]
    counted = [t if t >= 0 else length + 1 + t for t in times]
    return [t if 0 <= t <= length else None for t in counted]


def series(name: str, layer: nn.Module) -> list[str]:
    """What the norms of a recurrent layer's states are called: by state, and by layer of a stack.

    Example:
        >>> from torch import nn
        >>> from spectral_param.callbacks.through_time.norms import series
        >>> series("rnn", nn.GRU(1, 1)), series("rnn", nn.LSTM(1, 1, num_layers=2))
        (['rnn.h'], ['rnn.h_l0', 'rnn.h_l1', 'rnn.c_l0', 'rnn.c_l1'])
    """
    states = "hc" if isinstance(layer, nn.LSTM) else "h"
    layers = getattr(layer, "num_layers", 1)
    return [f"{name}.{s}_l{k}" if layers > 1 else f"{name}.{s}" for s in states for k in range(layers)]


def squares_through_time(
    call: RecordedCall, times: Sequence[int | None], weights: Sequence[str]
) -> tuple[Tensor, dict[str, Tensor]]:
    """‖∂L/∂h⁽ᵗ⁾‖² and ∂L/∂W of a call of a recurrent layer.

    Args:
        call: whose outputs have received their gradients.
        times: each from 0 to T, or ``None`` for one that the call does not have.
        weights: names of weights of the layer.

    Returns:
        Float64 on the CPU, (series, times), in the order of :func:`series`, with NaN where t cannot be read; and the
        gradients by name of the weight.
    """
    layers = getattr(call.module, "num_layers", 1)
    readable = [t for t in times if t is not None and (t == 0 or call.can_be_cut)]
    by_time, by_weight = gradients_of(call, readable, weights)
    squares = torch.full((len(call.initial) * layers, len(times)), torch.nan, dtype=torch.float64)
    for column, t in enumerate(times):
        if t in by_time:
            squares[:, column] = torch.cat([_by_layer(gradient, layers) for gradient in by_time[t]])
    return squares, by_weight


def square(gradient: Tensor | None) -> Tensor:
    """‖gradient‖² in float64 on the CPU; NaN for none."""
    if gradient is None:
        return torch.tensor(torch.nan, dtype=torch.float64)
    return (gradient.abs() if gradient.is_complex() else gradient).cpu().double().square().sum()


def norms_over_ranks(trainer: Trainer, squares: dict[str, Tensor]) -> dict[str, Tensor]:
    """Norms over all ranks, from the squared norms of each rank's own part, the loss being the mean over the ranks.

    A collective: to be called with the same names on every rank.
    """
    if trainer.world_size > 1 and squares:
        flat = torch.cat([part.flatten() for part in squares.values()]).to(trainer.strategy.root_device)
        flat = trainer.strategy.reduce(flat, reduce_op="sum").cpu() / trainer.world_size**2
        parts = flat.split([part.numel() for part in squares.values()])
        squares = {name: part.view_as(squares[name]) for name, part in zip(squares, parts, strict=True)}
    return {name: part.sqrt() for name, part in squares.items()}


def mean_over_ranks(trainer: Trainer, gradient: Tensor | None, size: int) -> Tensor | None:
    """The gradient of the mean loss from each rank's own, whose ``None`` counts as zero. A collective."""
    if trainer.world_size == 1:
        return gradient
    if gradient is None:
        gradient = torch.zeros(size, device=trainer.strategy.root_device)
    return trainer.strategy.reduce(gradient.float().flatten(), reduce_op="mean")


def _by_layer(gradient: Tensor, layers: int) -> Tensor:
    return gradient.unflatten(0, (layers, -1)).flatten(1).cpu().double().square().sum(1)
