"""The scan and small weights compiled for this machine, if you ask for it: :func:`build`."""

from spectral_param.functional.native.library import build, is_loaded

__all__ = ["build", "is_loaded"]
