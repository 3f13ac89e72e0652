"""A convolution as a linear map of images: its singular values, a bound for every image, and kernels clipped by them.

Everything here speaks of a convolution that makes m pixels of n along each side; a transposed one is the adjoint of
such, with the same singular values, and :class:`~spectral_param.functional.convolution.geometry.Geometry` reads both.
"""
