"""Convolutions whose operator on images has exactly the singular values that they say."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spectral_param.functional.convolution.circular_transpose import circular_transpose
from spectral_param.parametrization.shifted import ShiftedParametrization
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.counts import check_choices, counts_of, integer
from spectral_param.registration.injection.install import install
from spectral_param.sigma import SigmaMap, Unconstrained
from spectral_param.torch_state.modes import traced_or_transformed
from spectral_param.torch_state.private import ConvNd

_PADDINGS = ("circular", "zeros")


class _SVDConv(ConvNd):
    """What the layers of all dimensions share, in front of torch's own class."""

    _dimensions: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        *,
        padding_mode: str = "circular",
        bias: bool = True,
        reflectors: int | tuple[int, int] | None = None,
        sigma: SigmaMap | None = None,
        train: str = "all",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        in_channels, out_channels = _positive("in_channels", in_channels), _positive("out_channels", out_channels)
        kernel_size, stride = _positive("kernel_size", kernel_size), _positive("stride", stride)
        if kernel_size % stride or kernel_size // stride % 2 == 0:
            odd = f"an odd multiple of the stride {stride}, such as {stride} or {3 * stride}"
            raise ValueError(f"kernel_size: expected {odd if stride > 1 else 'an odd number'}, got {kernel_size}.")
        channels = in_channels * stride**self._dimensions
        if channels == out_channels == 1 < kernel_size:
            raise ValueError(
                f"kernel_size: expected 1 for one channel to one, where one σ leaves no more than a shift, "
                f"got {kernel_size}."
            )
        if padding_mode not in _PADDINGS:
            raise ValueError(f"padding_mode: expected 'circular' or 'zeros', got {padding_mode!r}.")
        check_choices(sigma, train)
        k = min(out_channels, channels)
        counts = counts_of(reflectors, k)
        sigma_map = Unconstrained() if sigma is None else copy.deepcopy(sigma)
        sigma_map.check(k)
        if train == "sigma" and not sigma_map.trained:
            raise ValueError(f"train: 'sigma' leaves nothing to train with {sigma_map}.")
        super().__init__(  # type: ignore[call-arg]  # torch's own layer, which comes next
            in_channels,
            out_channels,
            kernel_size,  # type: ignore[arg-type]
            stride,  # type: ignore[arg-type]
            (kernel_size - stride) // 2,  # type: ignore[arg-type]
            bias=bias,
            padding_mode=padding_mode,  # type: ignore[arg-type]
            device=device,
            dtype=dtype,
        )
        shape, dtype = tuple(self.weight.shape), self.weight.dtype
        parametrization = ShiftedParametrization(shape, stride, counts, sigma_map, dtype=dtype)
        with torch.inference_mode(False):
            install(self, "weight", parametrization, parametrization.starting_factors(self.weight))
        parametrization.freeze_all_but_(train)

    def forward(self, input: Tensor) -> Tensor:
        """Applies the convolution.

        Args:
            input: (N, in_channels, …) or (in_channels, …), images whose sides are multiples of the stride and, for
                circular padding, at least as long as the padding.

        Returns:
            (N, out_channels, …), with sides of ``side / stride``.

        Raises:
            ValueError: if a side does not fit.
        """
        self._check_sides("input", input.shape[-self._dimensions :])
        return self._conv_forward(input, self.weight, self.bias)

    def inverse(self, output: Tensor) -> Tensor:
        """Finds the input of an output, by one transposed convolution with the kernel of 1/σ; differentiable.

        Args:
            output: (N, out_channels, …) or (out_channels, …), in the dtype of the layer.

        Returns:
            (N, in_channels, …), with sides ``stride`` times as long; in float32 at least.

        Raises:
            ValueError: if ``out_channels`` is not ``in_channels · strideᵈ``, padding is not circular, a σ is zero, or
                the shape does not fit.
            TypeError: if the kernel is none of known σ any more.
        """
        parametrization = self._invertible()
        if output.dim() - self._dimensions not in (1, 2) or output.shape[-self._dimensions - 1] != self.out_channels:
            expected = f"(N, {self.out_channels}, …) with images of {self._dimensions} dimensions"
            raise ValueError(f"output: expected {expected}, got {tuple(output.shape)}.")
        stride = parametrization.stride
        self._check_sides("output", [side * stride for side in output.shape[-self._dimensions :]])
        if not traced_or_transformed() and (parametrization.sigma == 0).any():
            raise ValueError("module: expected σ that are not zero, got a singular operator.")
        kernel = parametrization.inverse_kernel()
        is_batch = output.dim() == self._dimensions + 2
        without_bias = (output if is_batch else output.unsqueeze(0)).to(kernel.dtype)
        if self.bias is not None:
            without_bias = without_bias - self.bias.to(kernel.dtype).view(-1, *(1,) * self._dimensions)
        input = circular_transpose(without_bias, kernel, stride)
        return input if is_batch else input.squeeze(0)

    def log_abs_det(self, *sides: int) -> Tensor:
        """``log |det|`` of the operator on an image, the number of its places times ``Σ log |σ|``; differentiable.

        Args:
            sides: of the input image, such as height and width.

        Returns:
            A scalar, ``-inf`` where a σ is zero.

        Raises:
            ValueError, TypeError: as for :meth:`inverse`.
        """
        parametrization = self._invertible()
        if len(sides) != self._dimensions:
            raise ValueError(f"sides: expected {self._dimensions}, got {len(sides)}.")
        self._check_sides("sides", sides)
        places = math.prod(side // parametrization.stride for side in sides)
        return places * parametrization.sigma.abs().log().sum()

    def _invertible(self) -> ShiftedParametrization:
        parametrization = SVDParametrization.alone_on(self)
        if not isinstance(parametrization, ShiftedParametrization):
            raise TypeError("module: expected a kernel that is held by its σ, got one that was folded or changed.")
        p, q = parametrization.shape
        if p != q:
            expected = f"in_channels · stride**{self._dimensions} = out_channels"
            raise ValueError(f"module: expected {expected}, got {q} and {p}.")
        if self.padding_mode != "circular":
            raise ValueError(f"module: expected padding_mode='circular', got {self.padding_mode!r}, which cuts off.")
        return parametrization

    def _check_sides(self, name: str, sides: Sequence[int]) -> None:
        if self.padding_mode != "circular":
            return
        stride, border = self.stride[0], (self.kernel_size[0] - self.stride[0]) // 2
        for side in sides:
            if side % stride or side < max(border, 1):
                expected = f"sides of at least {max(border, 1)}" + (f", multiples of {stride}" if stride > 1 else "")
                raise ValueError(f"{name}: expected {expected}, got {tuple(sides)}.")


def _positive(name: str, size: int) -> int:
    size = integer(name, size, "an integer")
    if size < 1:
        raise ValueError(f"{name}: expected at least 1, got {size}.")
    return size


class SVDConv2d(_SVDConv, nn.Conv2d):
    """A convolution whose operator on images has exactly the σ it says, called like ``nn.Conv2d``.

    The kernel is composed in each forward, a matrix ``U diag(σ) Vᵀ`` of the channels between reflectors that shift, and
    applied by ``nn.Conv2d``; the operator is never built. With circular padding its singular values are those σ, each
    as often as there are pixels, for images of any size. With zero padding none is above ``max |σ|``, and nothing
    holds from below: an image loses what is moved beyond its edges.

    Everything that reads or edits registered weights takes its ``weight``, for which σ are those of the operator; the
    kernel itself cannot be assigned, since few have known σ. ``remove_svd_parametrization`` leaves a plain kernel.

    A stride down-samples without loss: pixels are taken for channels, ``stride²`` of one, and the kernel has an odd
    number of taps on these coarser images.

    Initial values: U, V and shifts random, σ at the map's start, 1 for :class:`~spectral_param.Unconstrained`; b as in
    ``nn.Conv2d``.

    Args:
        in_channels: channels of an input.
        out_channels: channels of an output, of any number.
        kernel_size: taps along each axis, an odd multiple of the stride; between one channel and one: 1.
        stride: the same along each axis.
        padding_mode: ``"circular"``, or ``"zeros"``, with which σ are upper bounds. Outputs have sides ``side/stride``.
        bias: whether there is b.
        reflectors: of U and of V, see :func:`~spectral_param.register_svd_parametrization`, for a matrix of
            out_channels × (in_channels · stride²). The shifts have reflectors of their own, as many as half of the
            channels they move.
        sigma: σ map; ``None``: :class:`~spectral_param.Unconstrained`.
        train: ``"all"``, ``"sigma"``, or ``"reflectors"``, those of the shifts among them.
        device: as in ``nn.Conv2d``.
        dtype: as in ``nn.Conv2d``.

    Attributes:
        weight: the kernel, (out_channels, in_channels, kernel_size, kernel_size), computed from its factors when read.
        bias: b, (out_channels,), or ``None``.

    Raises:
        TypeError: if a size is no integer or ``sigma`` no σ map.
        ValueError: if an argument is out of range.

    Example:
        >>> import torch
        >>> from spectral_param import Band, spectral_norm
        >>> from spectral_param.nn import SVDConv2d
        >>> conv, x = SVDConv2d(8, 8, 3, sigma=Band(0.1)), torch.randn(5, 8, 12, 12)
        >>> spectral_norm(conv).item()
        1.0
        >>> torch.allclose((conv(x) - conv(0 * x)).norm(), x.norm())  # all σ are 1
        True
        >>> torch.allclose(conv.inverse(conv(x)), x, atol=1e-4)
        True
        >>> conv.log_abs_det(12, 12).item()
        0.0
    """

    _dimensions = 2


class SVDConv1d(_SVDConv, nn.Conv1d):
    """:class:`SVDConv2d` for sequences, ``stride`` of whose steps are taken for channels of one.

    Example:
        >>> import torch
        >>> from spectral_param import singular_values
        >>> from spectral_param.nn import SVDConv1d
        >>> conv = SVDConv1d(2, 4, 6, stride=2)
        >>> conv(torch.randn(3, 2, 20)).shape, singular_values(conv).shape
        (torch.Size([3, 4, 10]), torch.Size([4]))
    """

    _dimensions = 1


class SVDConv3d(_SVDConv, nn.Conv3d):
    """:class:`SVDConv2d` for volumes, ``stride³`` pixels of them taken for channels of one.

    Example:
        >>> import torch
        >>> from spectral_param.nn import SVDConv3d
        >>> conv, x = SVDConv3d(2, 2, 3), torch.randn(2, 4, 5, 6)
        >>> torch.allclose(conv.inverse(conv(x)), x, atol=1e-4)
        True
    """

    _dimensions = 3
