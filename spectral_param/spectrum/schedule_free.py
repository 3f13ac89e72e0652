"""Optimizers that average themselves: holding the two points that a parameter of theirs lies between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def averages_itself(optimizer: Optimizer) -> bool:
    """Whether an optimizer is schedule-free: steps at one point, and is put in another one for evaluation."""
    return callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None))


def share_of_average(group: dict[str, Any]) -> float | None:
    """β of a group of a schedule-free optimizer, which steps from y = (1 - β) z + β x; ``None`` where it says none.

    Example:
        >>> from spectral_param.spectrum.schedule_free import share_of_average
        >>> share_of_average({"params": [], "train_mode": True, "betas": (0.9, 0.999)}), share_of_average({"lr": 0.1})
        (0.9, None)
    """
    if "train_mode" not in group:
        return None
    return group["betas"][0] if "betas" in group else group.get("momentum")


@torch.no_grad()
def hold_(parameter: Tensor, optimizers: Iterable[Optimizer], clip_: Callable[[], None]) -> None:
    """Clips a parameter in place, and with a schedule-free optimizer the average x and the base z that it lies between.

    What is clipped to is an interval of raw numbers, or a ball, so that y between x and z is inside as well.

    Args:
        parameter: y where its optimizer trains, x where it has been put into evaluation.
        optimizers: those of the training, one of which may hold it.
        clip_: moves whatever the parameter holds into range, in place.
    """
    for optimizer in filter(averages_itself, optimizers):
        for group in optimizer.param_groups:
            beta, z = share_of_average(group), optimizer.state.get(parameter, {}).get("z")
            if beta is None or z is None or not any(held is parameter for held in group["params"]):
                continue
            x = parameter.lerp(z, 1 - 1 / beta) if group["train_mode"] else parameter.clone()
            parameter.copy_(z)
            clip_()
            z.copy_(parameter)
            parameter.copy_(x)
            clip_()
            if group["train_mode"]:
                parameter.lerp_(z, 1 - beta)
            return
    clip_()


def check_averages(asked_by: str, optimizers: Iterable[Optimizer]) -> None:
    """Raises ``ValueError`` for a schedule-free optimizer that does not say how it averages.

    Example:
        >>> import torch
        >>> from spectral_param.spectrum.schedule_free import check_averages
        >>> check_averages("SpectralCap", [torch.optim.SGD([torch.ones(1)], 0.1)])
    """
    for optimizer in filter(averages_itself, optimizers):
        if any(share_of_average(group) is None for group in optimizer.param_groups):
            raise ValueError(
                f"{asked_by}: expected an optimizer that says how it averages, got {type(optimizer).__name__}; give "
                "the weights a σ map with the range, such as Interval(min, max), or take another optimizer."
            )
