"""σ maps: how the trained numbers of a weight become its σ, and which σ they can become."""

from spectral_param.sigma.band import Band
from spectral_param.sigma.fixed import Fixed
from spectral_param.sigma.interval import Bounded, Interval
from spectral_param.sigma.map import SigmaMap
from spectral_param.sigma.positive import Positive
from spectral_param.sigma.unconstrained import Unconstrained

__all__ = ["Band", "Bounded", "Fixed", "Interval", "Positive", "SigmaMap", "Unconstrained"]
