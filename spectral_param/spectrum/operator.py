"""Singular values of a convolution as a map of images, where the others of this room read its kernel as a matrix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from spectral_param.functional.convolution.frequencies import circular_singular_values
from spectral_param.functional.convolution.geometry import Geometry, Side, geometry_of
from spectral_param.functional.convolution.gram import bound_at, bound_of
from spectral_param.functional.convolution.padding import circle, wraps_around
from spectral_param.functional.convolution.written_out import MOST, entries, written_out
from spectral_param.parametrization.lookup import check_module, named_modules
from spectral_param.torch_state.precision import full_precision, wide
from spectral_param.torch_state.private import ConvNd

Image = tuple[int, ...]
Images = Image | Mapping[str, Image]
"""The image of all convolutions, or of those whose weights have names of a pattern."""


SMALL = 2**19
"""Entries of a matrix whose decomposition is hardly more work than an upper bound, 724²."""
FEW = 512
"""Frequencies of images so small that twisted circles are tried too."""


def operator_singular_values(weight: Tensor, geometry: Geometry, image: Image, *, exact: bool) -> Tensor:
    """Singular values of a convolution, descending, as many as the shorter side of its matrix.

    Args:
        weight: the kernel.
        geometry: of the module.
        image: sides of what the module is given.
        exact: whether they are to be exact; if not, each is an upper bound where the image is no circle, nor small.

    Raises:
        ValueError: see :func:`~spectral_param.singular_values`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.spectrum.operator import operator_singular_values
        >>> conv = nn.Conv1d(1, 1, 3, padding=1)
        >>> operator_singular_values(torch.tensor([[[1.0, 2.0, 1.0]]]), geometry_of(conv), (2,), exact=True)
        tensor([3., 1.])
    """
    sides = _sides(geometry, image)
    with full_precision(weight.device.type):
        if _is_written_out(weight, geometry, sides, image, exact):
            sigma = torch.linalg.svdvals(written_out(wide(weight), geometry, image))
            return sigma.flatten().sort(descending=True).values
        counts, stretch = circle(geometry, sides)
        blocks = geometry.blocks(wide(weight))
        found = [
            circular_singular_values(blocks, geometry, counts, twists).sort(descending=True).values
            for twists in _twists(counts, wraps_around(geometry, sides))
        ]
        return stretch * torch.stack(found).amin(0)[: _rank(blocks, sides)]


def operator_norm_bound(weight: Tensor, geometry: Geometry, image: Image) -> Tensor:
    """The norm of a convolution on images of one size, or somewhat more: a scalar of float64, never below it.

    Where the image is a circle or small (1448² entries) it is at most 1.01 times the norm, and else at most 1.01 times
    that of the circle around it (:mod:`spectral_param.functional.convolution.padding`).

    Args:
        weight: the kernel.
        geometry: of the module.
        image: sides of what the module is given.

    Example:
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.spectrum.operator import operator_norm_bound
        >>> conv = nn.Conv1d(1, 1, 1)
        >>> round((operator_norm_bound(conv.weight, geometry_of(conv), (1000,)) / conv.weight.abs()).item(), 2)
        1.0
    """
    sides = _sides(geometry, image)
    with full_precision(weight.device.type):
        if not wraps_around(geometry, sides) and entries(geometry.blocks(weight), sides) <= 4 * SMALL:
            return bound_of(written_out(weight.double(), geometry, image))
        counts, stretch = circle(geometry, sides)
        blocks, twisted = geometry.blocks(weight), _twists(counts, wraps_around(geometry, sides))
        return stretch * torch.stack([bound_at(blocks, geometry, counts, twists) for twists in twisted]).amin()


def _twists(counts: Sequence[int], is_circle: bool) -> list[tuple[bool, ...]]:
    """The circles, twisted or not, that an image lies on: Note [Twists]."""
    if is_circle or math.prod(counts) > FEW:
        return [()]
    return list(itertools.product((False, True), repeat=len(counts)))


def _sides(geometry: Geometry, image: Image) -> tuple[Side, ...]:
    if not isinstance(image, tuple):
        raise TypeError(f"operator: expected an image's sides, such as (height, width), got {image!r}.")
    sides = geometry.sides(image)
    for side, (low, high) in zip(sides, geometry.padding, strict=True):
        most = {"zeros": math.inf, "replicate": math.inf, "circular": side.n, "reflect": side.n - 1}
        if max(low, high) > most[geometry.padding_mode]:
            raise ValueError(
                f"operator: expected an image larger than its padding_mode={geometry.padding_mode!r} pads, got {image}."
            )
    return sides


def _is_written_out(weight: Tensor, geometry: Geometry, sides: Sequence[Side], image: Image, exact: bool) -> bool:
    if wraps_around(geometry, sides):
        return False
    size = entries(geometry.blocks(weight), sides)
    if exact and size > MOST:
        raise ValueError(
            f"operator: expected an image whose matrix has at most {MOST} entries, where a convolution with "
            f"padding_mode={geometry.padding_mode!r} is not a circular one, got {image}, with {size}; "
            "exact=False gives upper bounds."
        )
    return exact or size <= SMALL


def convolution(module: nn.Module, tensor_name: str = "weight") -> Geometry:
    """How the convolution goes whose weight is meant.

    Raises:
        TypeError: if ``module`` is no module.
        ValueError: if it is no convolution, or the name is of no kernel.
    """
    check_module("module", module)
    if not isinstance(module, ConvNd):
        raise ValueError(
            f"operator: expected a convolution, got {type(module).__name__}; leave it out to read a matrix."
        )
    if tensor_name != "weight":
        raise ValueError(f"tensor_name: expected 'weight', a convolution's kernel, got {tensor_name!r}.")
    return geometry_of(module)


def check_images(operator: Images | None) -> None:
    """Raises the errors of an option that takes the image of all convolutions, or of each by patterns of names.

    Raises:
        TypeError: if it is neither a tuple of sizes nor a mapping of patterns to such.
        ValueError: if a size is not positive.

    Example:
        >>> from spectral_param.spectrum.operator import check_images
        >>> check_images({"*": (32, 0)})
        Traceback (most recent call last):
        ValueError: operator: expected positive sizes of an image, got (32, 0).
    """
    if operator is None:
        return
    images = operator.values() if isinstance(operator, Mapping) else [operator]
    names = operator if isinstance(operator, Mapping) else ()
    if not all(isinstance(name, str) for name in names) or not all(map(_is_image, images)):
        raise TypeError(f"operator: expected an image's (height, width), or such by name patterns, got {operator!r}.")
    for image in images:
        if min(image, default=0) < 1:
            raise ValueError(f"operator: expected positive sizes of an image, got {image}.")


def check_convolutions(operator: Images | None, model: nn.Module) -> None:
    """Raises ``ValueError`` where there is no convolution in a model for an image to be of.

    Example:
        >>> from torch import nn
        >>> from spectral_param.spectrum.operator import check_convolutions
        >>> check_convolutions({"stem.*": (32, 32)}, nn.Sequential(nn.Conv2d(3, 3, 3)))
        Traceback (most recent call last):
        ValueError: operator: expected patterns of convolutions' weights, 'stem.*' matches none.
    """
    if operator is None:
        return
    convolutions = (name for name, module in named_modules(model) if isinstance(module, ConvNd))
    names = [f"{name}.weight" if name else "weight" for name in convolutions]
    patterns = tuple(operator) if isinstance(operator, Mapping) else ("*",)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"operator: expected patterns of convolutions' weights, {pattern!r} matches none.")


def image_for(operator: Images | None, module: nn.Module, name: str) -> Image | None:
    """The image on which a weight of a model is read as an operator, or none: it is then read as a matrix.

    Raises:
        ValueError: if the image does not suit the convolution.

    Example:
        >>> from torch import nn
        >>> from spectral_param.spectrum.operator import image_for
        >>> conv = nn.Conv2d(3, 3, 3)
        >>> image_for({"stem.*": (32, 32)}, conv, "stem.weight"), image_for((8, 8), nn.Linear(2, 2), "head.weight")
        ((32, 32), None)
    """
    if operator is None or not isinstance(module, ConvNd) or name.rpartition(".")[2] != "weight":
        return None
    if isinstance(operator, Mapping):
        image = next((image for pattern, image in operator.items() if fnmatchcase(name, pattern)), None)
    else:
        image = operator
    if image is None:
        return None
    try:
        _sides(geometry_of(module), image)
    except ValueError as error:
        raise ValueError(f"{error} The convolution is {name!r}.") from None
    return image


def in_words(weight: Tensor, geometry: Geometry, image: Image) -> str:
    """``32×32``, or ``≤ 32×32`` where without ``exact`` upper bounds are read.

    Example:
        >>> from torch import nn
        >>> from spectral_param.functional.convolution.geometry import geometry_of
        >>> from spectral_param.spectrum.operator import in_words
        >>> conv = nn.Conv2d(8, 8, 3)
        >>> in_words(conv.weight, geometry_of(conv), (32, 32)), in_words(conv.weight, geometry_of(conv), (5, 5))
        ('≤ 32×32', '5×5')
    """
    sides = _sides(geometry, image)
    is_exact = wraps_around(geometry, sides) or _is_written_out(weight, geometry, sides, image, False)
    return ("" if is_exact else "≤ ") + "×".join(map(str, image))


def _is_image(image: object) -> bool:
    return isinstance(image, tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in image)


def _rank(blocks: Tensor, sides: Sequence[Side]) -> int:
    """The shorter side of the matrix of all groups together."""
    groups, rows, columns = blocks.shape[:3]
    return groups * min(rows * math.prod(side.m for side in sides), columns * math.prod(side.n for side in sides))
