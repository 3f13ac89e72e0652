"""What the singular values of a network promise: how far its output can move, and how well it can generalize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spectral_param.bounds.certificate import certified_hinge_loss, certified_radius
from spectral_param.bounds.generalization import mlp_generalization_gap, rnn_generalization_gap
from spectral_param.bounds.lipschitz import cell_lipschitz_bound, lipschitz_bound
from spectral_param.bounds.margin_loss import margin_loss
from spectral_param.bounds.unrolled import UnrolledBounds, unrolled_lipschitz_bounds

if TYPE_CHECKING:
    from spectral_param.bounds.margin_metric import MarginLoss

__all__ = [
    "MarginLoss",
    "UnrolledBounds",
    "cell_lipschitz_bound",
    "certified_hinge_loss",
    "certified_radius",
    "lipschitz_bound",
    "margin_loss",
    "mlp_generalization_gap",
    "rnn_generalization_gap",
    "unrolled_lipschitz_bounds",
]


def __getattr__(name: str) -> Any:
    if name != "MarginLoss":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spectral_param.bounds.margin_metric import MarginLoss  # asks for torchmetrics, which bounds do without

    return MarginLoss
