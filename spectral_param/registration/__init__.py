"""Registering an SVD parametrization on weights of an existing model, and taking it off again."""

from spectral_param.parametrization.lookup import is_registered, registered_names, svd_parametrizations
from spectral_param.registration.register import register_svd_parametrization, remove_svd_parametrization
from spectral_param.registration.register_all import register_all
from spectral_param.registration.report import RegistrationReport

__all__ = [
    "RegistrationReport",
    "is_registered",
    "register_all",
    "register_svd_parametrization",
    "registered_names",
    "remove_svd_parametrization",
    "svd_parametrizations",
]
