"""Stateless functions: reflectors to orthogonal matrices and back, and the recurrent scan."""

from spectral_param.functional.fitting import householder_from_orthogonal
from spectral_param.functional.householder import householder_apply, householder_product
from spectral_param.functional.scan import rnn_scan

__all__ = [
    "householder_apply",
    "householder_from_orthogonal",
    "householder_product",
    "rnn_scan",
]
