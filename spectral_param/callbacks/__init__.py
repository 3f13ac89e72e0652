"""Lightning callbacks that watch and control singular values."""

from spectral_param.extras import extra

with extra("lightning"):
    from spectral_param.callbacks.clip import SpectralClip
    from spectral_param.callbacks.gradients import GradientNormMonitor
    from spectral_param.callbacks.monitor import SpectralMonitor
    from spectral_param.callbacks.penalty import SpectralPenalty
    from spectral_param.callbacks.progress import SpectralProgressBar
    from spectral_param.callbacks.schedule import BandSchedule
    from spectral_param.spectrum.statistics import shape_statistics, spectral_statistics

__all__ = [
    "BandSchedule",
    "GradientNormMonitor",
    "SpectralClip",
    "SpectralMonitor",
    "SpectralPenalty",
    "SpectralProgressBar",
    "shape_statistics",
    "spectral_statistics",
]
