"""The scan and small weights compiled for this machine, if you ask for it: :func:`build`."""

from spectral_param.functional.native.library import build, is_loaded
from spectral_param.functional.native.low_rank import fits_weight, weight, weight_gradients
from spectral_param.functional.native.scan import Recurrence, fits, run, run_back

__all__ = [
    "Recurrence",
    "build",
    "fits",
    "fits_weight",
    "is_loaded",
    "run",
    "run_back",
    "weight",
    "weight_gradients",
]
