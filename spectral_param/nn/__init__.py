"""Layers built around an SVD parametrization."""

from spectral_param.nn.centering import Centering
from spectral_param.nn.group_sort import GroupSort, MaxMin
from spectral_param.nn.residual import Residual
from spectral_param.nn.spectral_rnn import SpectralRNN
from spectral_param.nn.svd_conv import SVDConv1d, SVDConv2d, SVDConv3d
from spectral_param.nn.svd_linear import SVDLinear

__all__ = [
    "Centering",
    "GroupSort",
    "MaxMin",
    "Residual",
    "SVDConv1d",
    "SVDConv2d",
    "SVDConv3d",
    "SVDLinear",
    "SpectralRNN",
]
