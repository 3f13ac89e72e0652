"""What ``torch.load(weights_only=True)`` has to allow for a whole model."""

from __future__ import annotations

from typing import Any

from torch import nn

from spectral_param import sigma
from spectral_param.functional.frozen import FrozenProduct
from spectral_param.parametrization.blocks import Matrices
from spectral_param.parametrization.factors import Layout, Side
from spectral_param.parametrization.kept_weight import KeptWeight
from spectral_param.parametrization.remaining import RemainingSpectrum
from spectral_param.parametrization.shifted import ShiftedKernel, ShiftedParametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.registration.injection.shared_class import Unfilled, rebuild
from spectral_param.registration.injection.svd_list import SVDList
from spectral_param.sizes import Sizes


def safe_globals() -> list[Any]:
    """Lists what registering puts into a model, for one that was saved whole, ``torch.save(model, …)``.

    These are classes of this package and of torch, and the function that rebuilds the class of a registered module from
    its plain one. The model's own classes, and its layers of ``torch.nn`` and ``spectral_param.nn``, are yours to
    allow; ``torch.serialization.get_unsafe_globals_in_checkpoint(file)`` names all.

    Returns:
        What ``torch.serialization.safe_globals`` and ``add_safe_globals`` take.

    Example:
        >>> import io
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param import register_all, safe_globals
        >>> model, file = nn.Sequential(nn.Linear(3, 2)), io.BytesIO()
        >>> _ = register_all(model)
        >>> torch.save(model, file)
        >>> _ = file.seek(0)
        >>> with torch.serialization.safe_globals([*safe_globals(), nn.Sequential, nn.Linear]):
        ...     torch.equal(torch.load(file, weights_only=True)[0].weight, model[0].weight)
        True
    """
    maps = [getattr(sigma, name) for name in sigma.__all__ if name != "SigmaMap"]
    held = [SVDParametrization, TurnedParametrization, ShiftedParametrization, SVDList, nn.ModuleDict]
    sizes = [Matrices, ShiftedKernel, Layout, Sizes, Side]
    kept = [FrozenProduct, KeptWeight, RemainingSpectrum]
    return [rebuild, Unfilled, *held, *sizes, *kept, *maps]
