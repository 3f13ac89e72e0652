"""See and control the singular values of any weight.

Every registered weight is kept as ``W = U diag(σ) Vᵀ`` with U and V products of Householder reflectors, after Zhang,
Lei, Dhillon, "Stabilizing Gradients for Deep Neural Networks via Efficient SVD Parameterization" (2018), cited in these
pages as "the paper".
"""

from spectral_param.editing import (
    clip_singular_values_,
    renormalize_reflectors_,
    spectral_penalty,
)
from spectral_param.parametrization import SVDParametrization
from spectral_param.registration import (
    register_svd_parametrization,
    remove_svd_parametrization,
    svd_parametrizations,
)
from spectral_param.sigma import Band, Fixed, SigmaMap, Unconstrained
from spectral_param.spectrum import singular_values, spectral_margin, spectral_norm

__version__ = "0.1.0"

__all__ = [
    "Band",
    "Fixed",
    "SVDParametrization",
    "SigmaMap",
    "Unconstrained",
    "clip_singular_values_",
    "register_svd_parametrization",
    "remove_svd_parametrization",
    "renormalize_reflectors_",
    "singular_values",
    "spectral_margin",
    "spectral_norm",
    "spectral_penalty",
    "svd_parametrizations",
]
