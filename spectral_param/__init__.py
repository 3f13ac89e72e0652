"""See and control the singular values of any weight.

Every registered weight is kept as ``W = U diag(σ) Vᵀ`` with U and V products of Householder reflectors, after Zhang,
Lei, Dhillon, "Stabilizing Gradients for Deep Neural Networks via Efficient SVD Parameterization" (2018), cited in these
pages as "the paper".
"""

from spectral_param.optimizers import add_factors_, parameter_groups
from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.together import together
from spectral_param.registration.adapter import adapter_state_dict, load_adapter, save_adapter, without_adapter
from spectral_param.registration.plain_state import load_plain_state_dict, plain_state_dict
from spectral_param.registration.register import register_svd_parametrization, remove_svd_parametrization
from spectral_param.registration.register_all import register_all
from spectral_param.registration.report import RegistrationReport
from spectral_param.registration.safe_globals import safe_globals
from spectral_param.show_config import show_config
from spectral_param.sigma import Band, Bounded, Fixed, Interval, Positive, SigmaMap, Unconstrained
from spectral_param.spectrum.cap import SpectralCap
from spectral_param.spectrum.decomposition import SVD, inverse, pinv, solve, svd
from spectral_param.spectrum.editing import (
    clip_singular_values_,
    renormalize_reflectors_,
    spectral_penalty,
)
from spectral_param.spectrum.image_sizes import image_sizes
from spectral_param.spectrum.table import spectral_table
from spectral_param.spectrum.values import (
    condition_number,
    log_abs_det,
    singular_values,
    spectral_margin,
    spectral_norm,
)

__version__ = "0.2.0"

__all__ = [
    "SVD",
    "Band",
    "Bounded",
    "Fixed",
    "Interval",
    "Positive",
    "RegistrationReport",
    "SVDParametrization",
    "SigmaMap",
    "SpectralCap",
    "Unconstrained",
    "adapter_state_dict",
    "add_factors_",
    "clip_singular_values_",
    "condition_number",
    "image_sizes",
    "inverse",
    "load_adapter",
    "load_plain_state_dict",
    "log_abs_det",
    "parameter_groups",
    "pinv",
    "plain_state_dict",
    "register_all",
    "register_svd_parametrization",
    "remove_svd_parametrization",
    "renormalize_reflectors_",
    "safe_globals",
    "save_adapter",
    "show_config",
    "singular_values",
    "solve",
    "spectral_margin",
    "spectral_norm",
    "spectral_penalty",
    "spectral_table",
    "svd",
    "svd_parametrizations",
    "together",
    "without_adapter",
]
