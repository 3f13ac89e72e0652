"""Layers on a frozen base: its own product with the input, and beside it that of the thin change, W never summed up."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from spectral_param.parametrization.beside import convolve_beside, linear_beside
from spectral_param.parametrization.blocks import CONVOLUTIONS
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.turned import TurnedParametrization
from spectral_param.registration.injection.matrix_free import passes_the_sum
from spectral_param.registration.injection.watch import tell_of_writes

FORWARDS = tuple(kind.forward for kind in CONVOLUTIONS)
"""What is known of a convolution: a forward of its own is called as it is."""


def conv1d_of_transformers(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For the layer of GPT-2 in transformers, a linear one whose weight stands as (in, out): ``x W + b``."""

    @functools.wraps(forward)
    def wrapped(self: Any, x: Tensor) -> Tensor:
        p = SVDParametrization.alone_on(self)
        if isinstance(p, TurnedParametrization) and passes_the_sum(p, x, -1):
            tell_of_writes(self)
            return linear_beside(p, x, self.bias, transposed=True)
        return forward(self, x)

    return wrapped


def convolution(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For ``nn.Conv1d`` to ``nn.Conv3d``: a convolution by few kernels and one of 1×1 stand beside the base's."""

    @functools.wraps(forward)
    def wrapped(self: Any, input: Tensor) -> Tensor:
        p = SVDParametrization.alone_on(self)
        if not isinstance(p, TurnedParametrization) or self.groups not in (1, p.chunks):
            return forward(self, input)
        space = len(self.kernel_size)
        fits = isinstance(input, Tensor) and input.dim() in (space + 1, space + 2)
        if not fits or not passes_the_sum(p, input, -space - 1, strides=math.prod(self.stride)):
            return forward(self, input)
        tell_of_writes(self)
        return convolve_beside(p, input, self._conv_forward, self.bias)

    return wrapped
