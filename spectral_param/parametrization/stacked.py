"""An SVD on which another parametrization stands: its σ are not those of the weight that the module works with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param.torch_state.precision import wide


def on_top_of(parametrization: Any) -> str:
    """What was registered on top, by the names of the classes; empty where nothing was.

    Example:
        >>> import torch
        >>> from torch.nn.utils import parametrize
        >>> from spectral_param import register_svd_parametrization
        >>> from spectral_param.parametrization.stacked import on_top_of
        >>> layer = register_svd_parametrization(torch.nn.Linear(3, 3))
        >>> p = layer.parametrizations.weight[0]
        >>> on_top_of(p)
        ''
        >>> _ = parametrize.register_parametrization(layer, "weight", torch.nn.Identity())
        >>> on_top_of(p)
        'Identity'
    """
    return ", ".join(type(later).__name__ for later in list(parametrization.parametrization_list)[1:])


def check_alone(parametrization: Any) -> None:
    """Raises ``ValueError`` where something was, for those who hold σ of the weight by those of the SVD."""
    later = on_top_of(parametrization)
    if later:
        raise ValueError(
            f"weight: {later} stands on top of its SVD, whose σ are not those of the weight; leave the weight "
            "out, or register it without that."
        )


def sigma_of_weight(parametrization: Any) -> Tensor:
    """σ of the weight that the module works with, differentiable: those of the SVD, or by a decomposition.

    Returns:
        (k,) or (chunks, k), with signs where they are those of the SVD.
    """
    if on_top_of(parametrization):
        sigma = torch.linalg.svdvals(parametrization.matrices.of(wide(parametrization.parametrization_list())))
        return sigma if parametrization.chunks > 1 else sigma[0]
    own: Tensor = parametrization.sigma
    return own
