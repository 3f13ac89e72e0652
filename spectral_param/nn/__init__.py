"""Layers built around an SVD parametrization."""

from spectral_param.nn.spectral_rnn import SpectralRNN

__all__ = ["SpectralRNN"]
