"""The scan and small weights compiled for this machine, if you ask for it: :func:`build`."""

from spectral_param.native.library import build, is_loaded
from spectral_param.native.low_rank import fits_weight, weight, weight_gradients
from spectral_param.native.scan import backward_, fits, forward_, summed_outer_products

__all__ = [
    "backward_",
    "build",
    "fits",
    "fits_weight",
    "forward_",
    "is_loaded",
    "summed_outer_products",
    "weight",
    "weight_gradients",
]
