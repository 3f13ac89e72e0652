"""The recurrence h_t = φ(W h_{t-1} + M x_t + b) over a whole sequence."""

from spectral_param.functional.scan.activation import NONLINEARITIES
from spectral_param.functional.scan.dense import rnn_scan
from spectral_param.functional.scan.low_rank import low_rank_scan

__all__ = ["NONLINEARITIES", "low_rank_scan", "rnn_scan"]
