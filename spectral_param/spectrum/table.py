"""The weights of a model in a table."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.parametrization.blocks import matrices_of
from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.stacked import on_top_of, sigma_of_weight
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.sigma.level import finite
from spectral_param.spectrum.as_matrix import weight_of
from spectral_param.spectrum.operator import Images, check_convolutions, check_images, convolution, image_for, in_words
from spectral_param.spectrum.patterns import chosen_plain, owner_of
from spectral_param.spectrum.statistics import shape_statistics, spectral_statistics
from spectral_param.spectrum.whole_sigma import dense_singular_values, operator_sigma


class SpectralTable(list[dict[str, Any]]):
    """A list of rows, each a dict of plain values, that prints as a table."""

    def __str__(self) -> str:
        if not self:
            return "no weight is registered"
        total = []
        if "trained" in self[0]:
            total = [dict.fromkeys(self[0], "") | {"weight": "total", "trained": sum(row["trained"] for row in self)}]
        lines = [list(self[0]), *([in_cell(name, value) for name, value in row.items()] for row in (*self, *total))]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [not isinstance(value, (int, float)) for value in self[0].values()]
        return _printable("\n".join(_aligned(line, widths, texts) for line in lines))

    __repr__ = __str__


def spectral_table(
    model: nn.Module,
    center: float = 1.0,
    *,
    dense: bool | str | Sequence[str] = False,
    operator: Images | None = None,
) -> SpectralTable:
    """Lists the registered weights of a model and their singular values, without a decomposition, and plain ones.

    On a sharded model a collective, so to be called on all ranks.

    Args:
        model: any module.
        center: what the margin is measured from.
        dense: whether plain weights are listed too, or name patterns of those that are; each takes a
            :func:`torch.linalg.svdvals`.
        operator: reads convolutions as maps of images, registered ones too: of one size, (height, width), or of sizes
            by name patterns, as :func:`~spectral_param.image_sizes` finds them.

    Returns:
        For each weight ``weight`` (its qualified name), ``blocks``, ``shape`` (p, q) of a block, ``reflectors``
        (m₁, m₂), ``sigma`` (the map), ``min`` and ``max`` of ``|σ|``, ``margin`` (``max ||σ| - center|``), and
        ``trained``, how many numbers of it require a gradient. With ``dense`` also ``effective_rank``, ``stable_rank``,
        ``tail_exponent`` and ``tail_error``, as :func:`~spectral_param.callbacks.spectral_statistics` and
        :func:`~spectral_param.callbacks.shape_statistics` say; plain weights have no reflectors, and the map
        ``"plain"``. With ``operator`` also ``operator``, the image, behind ``≤`` where upper bounds are read
        (``exact=False`` of :func:`~spectral_param.singular_values`). Prints as a table; ``pandas.DataFrame`` takes it
        as it is.

    Raises:
        TypeError: if ``center`` is no number, or ``dense`` or ``operator`` is something else.
        ValueError: if an image is of no convolution, or does not suit it.

    Example:
        >>> from torch import nn
        >>> from spectral_param import Band, register_svd_parametrization, spectral_table
        >>> model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.LSTM(4, 8))
        >>> _ = register_svd_parametrization(model[0], reflectors=2, sigma=Band(0.1), init="orthogonal")
        >>> _ = register_svd_parametrization(model[2], "weight_hh_l0", chunks=4, init="orthogonal")
        >>> spectral_table(model)
        weight          blocks  shape  reflectors  sigma                         min  max  margin  trained
        0.weight             1  4×6    2, 2        Band(radius=0.1, center=1.0)    1    1       0       22
        2.weight_hh_l0       4  8×8    8, 8        Unconstrained()                 1    1       0      320
        total                                                                                          342
        >>> spectral_table(model)[0]["shape"]
        (4, 6)
        >>> [row["weight"] for row in spectral_table(model, dense=True)]
        ['0.weight', '2.weight_hh_l0', '2.weight_ih_l0']
    """
    center = finite("center", center)
    check_images(operator)
    check_convolutions(operator, model)
    rows = [_row(name, held, center, dense is not False) for name, held in svd_parametrizations(model)]
    rows += [_plain_row(name, *found, center) for name, found in chosen_plain(model, dense).items()]
    if operator is not None:
        rows = [row | _on_images(model, row, center, operator) for row in rows]
    return SpectralTable(rows)


@torch.no_grad()
def _on_images(model: nn.Module, row: dict[str, Any], center: float, operator: Images) -> dict[str, Any]:
    """What a row has of its weight as an operator, where it is read as one."""
    module, tensor_name = owner_of(model, row["weight"])
    image = image_for(operator, module, row["weight"])
    if image is None:
        return {"operator": ""}
    weight = weight_of(module, tensor_name)
    sigma = operator_sigma(module, weight, image)
    shape = _shape(sigma) if "effective_rank" in row else {}
    words = in_words(weight, convolution(module), image)
    return _numbers(sigma, center, row["trained"]) | shape | {"operator": words}


@torch.no_grad()
def _row(name: str, parametrization: SVDParametrization, center: float, with_shape: bool) -> dict[str, Any]:
    sigma, later = sigma_of_weight(parametrization).abs(), on_top_of(parametrization)
    row = {
        "weight": name,
        "blocks": parametrization.chunks,
        "shape": parametrization.shape,
        "reflectors": parametrization.reflectors,
        "sigma": f"{parametrization.sigma_map}, {later}" if later else str(parametrization.sigma_map),
    }
    trained = sum(factor.numel() for factor in parametrization.factors if factor.requires_grad)
    return row | _numbers(sigma, center, trained) | (_shape(sigma) if with_shape else {})


@torch.no_grad()
def _plain_row(name: str, module: nn.Module, weight: nn.Parameter, center: float) -> dict[str, Any]:
    matrices = matrices_of(module, weight)
    sigma = dense_singular_values(module, weight)
    row = {"weight": name, "blocks": matrices.count, "shape": (matrices.p, matrices.q), "reflectors": ()}
    trained = weight.numel() if weight.requires_grad else 0
    return row | {"sigma": "plain"} | _numbers(sigma, center, trained) | _shape(sigma)


def _numbers(sigma: Tensor, center: float, trained: int) -> dict[str, Any]:
    margin = (sigma - center).abs().max().item()
    return {"min": sigma.min().item(), "max": sigma.max().item(), "margin": margin, "trained": trained}


def _shape(sigma: Tensor) -> dict[str, float]:
    return {"effective_rank": spectral_statistics(sigma)["effective_rank"], **shape_statistics(sigma)}


def _printable(text: str) -> str:
    """With ``x`` for ``×``, and other letters spelled out, where the terminal's encoding lacks them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("×", "x").encode(encoding, "backslashreplace").decode(encoding)
    return text


def in_cell(name: str, value: Any) -> str:
    """A value under a heading in words; NaN says that there is none, and of σ that the weight is not finite.

    Example:
        >>> from spectral_param.spectrum.table import in_cell
        >>> in_cell("shape", (4, 6)), in_cell("max", float("nan")), in_cell("tail_error", float("nan"))
        ('4×6', 'not finite', '')
    """
    if isinstance(value, tuple):
        return ("×" if name == "shape" else ", ").join(map(str, value))
    if isinstance(value, float):
        return f"{value:.4g}" if not math.isnan(value) else "not finite" if name in _OF_SIGMA else ""
    return escaped(str(value))


_OF_SIGMA = ("min", "max", "max_after")


def escaped(text: str) -> str:
    r"""With control characters spelled out, which could steer a terminal.

    Example:
        >>> from spectral_param.spectrum.table import escaped
        >>> print(escaped("fc\x1b[2J\u202eweight"))
        fc\x1b[2J\u202eweight
    """
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _aligned(line: Sequence[str], widths: Sequence[int], texts: Sequence[bool]) -> str:
    """Texts to the left, numbers to the right."""
    cells = zip(line, widths, texts, strict=True)
    return "  ".join(cell.ljust(width) if text else cell.rjust(width) for cell, width, text in cells).rstrip()
