"""Leaves out of the doctests the one module that cannot be imported without Triton."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["spectral_param/functional/scan/triton_kernels.py"]
