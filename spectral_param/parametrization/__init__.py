"""The module that holds a weight in SVD form, what it is made of, and how it is found again."""

from spectral_param.parametrization.svd import SVDParametrization

__all__ = ["SVDParametrization"]
