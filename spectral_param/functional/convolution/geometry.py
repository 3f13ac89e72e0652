"""What a convolution does to the sides of an image, read once from its module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from spectral_param.torch_state.private import ConvNd


class Side(NamedTuple):
    """One side of an image.

    Attributes:
        n: pixels that the convolution reads; of a transposed one, that it writes.
        m: windows: pixels that the convolution writes; of a transposed one, that it reads.
    """

    n: int
    m: int


@dataclass(frozen=True)
class Geometry:
    """All of a convolution but its numbers, each tuple with an entry for each side of an image.

    Attributes:
        kernel: taps.
        stride: between windows.
        dilation: between taps.
        padding: before and after; of a transposed convolution what is cut off.
        output_padding: of a transposed convolution.
        padding_mode: ``"zeros"``, ``"circular"``, ``"reflect"`` or ``"replicate"``.
        groups: how many parts of the channels do not meet.
        transposed: whether it is the adjoint of a convolution.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    output_padding: tuple[int, ...]
    padding_mode: str
    groups: int
    transposed: bool

    @property
    def reach(self) -> tuple[int, ...]:
        """Pixels between the first and the last tap."""
        return tuple(d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def pads_nothing(self) -> bool:
        """Whether no pixel is padded, whatever the mode."""
        return not any(map(any, self.padding))

    def blocks(self, weight: Tensor) -> Tensor:
        """The weight as (groups, rows, columns, taps…), of the convolution or of that whose adjoint it is."""
        return weight.reshape(self.groups, weight.shape[0] // self.groups, *weight.shape[1:])

    def sides(self, image: tuple[int, ...]) -> tuple[Side, ...]:
        """What becomes of an image that the module is given.

        Raises:
            ValueError: if the image has another number of sides, one is not positive, or no window fits.
        """
        if len(image) != len(self.kernel) or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in image):
            raise ValueError(f"operator: expected {len(self.kernel)} positive sizes of an image, got {image!r}.")
        if self.transposed:
            sides = tuple(Side(self._grown(i, n), n) for i, n in enumerate(image))
        else:
            sides = tuple(Side(n, self._windows(i, n)) for i, n in enumerate(image))
        if any(side.n < 1 or side.m < 1 for side in sides):
            raise ValueError(f"operator: expected an image that the kernel's windows fit, got {image!r}.")
        return sides

    def _windows(self, i: int, n: int) -> int:
        return (n + sum(self.padding[i]) - self.reach[i] - 1) // self.stride[i] + 1

    def _grown(self, i: int, m: int) -> int:
        return (m - 1) * self.stride[i] - sum(self.padding[i]) + self.reach[i] + self.output_padding[i] + 1


def geometry_of(module: ConvNd) -> Geometry:
    """Reads ``nn.Conv1d`` to ``nn.Conv3d`` and their transposes.

    Example:
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> geometry = geometry_of(nn.Conv2d(3, 8, 3, padding="same", padding_mode="circular"))
        >>> geometry.padding, geometry.sides((32, 16))
        (((1, 1), (1, 1)), (Side(n=32, m=32), Side(n=16, m=16)))
    """
    reach = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
    if module.padding == "same":
        padding = tuple((r // 2, r - r // 2) for r in reach)
    elif module.padding == "valid":
        padding = tuple((0, 0) for _ in reach)
    else:
        padding = tuple((int(p), int(p)) for p in module.padding)
    return Geometry(
        kernel=tuple(module.kernel_size),
        stride=tuple(module.stride),
        dilation=tuple(module.dilation),
        padding=padding,
        output_padding=tuple(module.output_padding),
        padding_mode=module.padding_mode,
        groups=module.groups,
        transposed=module.transposed,
    )
