"""The registered weights of a model in a table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from spectral_param.parametrization.lookup import svd_parametrizations
from spectral_param.parametrization.svd import SVDParametrization


class SpectralTable(list[dict[str, Any]]):
    """A list of rows, each a dict of plain values, that prints as a table."""

    def __str__(self) -> str:
        if not self:
            return "no weight is registered"
        total = dict.fromkeys(self[0], "") | {"weight": "total", "trained": sum(row["trained"] for row in self)}
        lines = [list(self[0]), *([_in_words(name, value) for name, value in row.items()] for row in (*self, total))]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = [not isinstance(value, (int, float)) for value in self[0].values()]
        return _printable("\n".join(_aligned(line, widths, texts) for line in lines))

    __repr__ = __str__


def spectral_table(model: nn.Module, center: float = 1.0) -> SpectralTable:
    """Lists the registered weights of a model and their singular values, without a decomposition.

    On a sharded model a collective, so to be called on all ranks.

    Args:
        model: any module.
        center: what the margin is measured from.

    Returns:
        For each weight ``weight`` (its qualified name), ``blocks``, ``shape`` (p, q) of a block, ``reflectors``
        (m₁, m₂), ``sigma`` (the map), ``min`` and ``max`` of |σ|, ``margin`` max||σ| - center|, and ``trained``, how
        many numbers of it require a gradient. Prints as a table; ``pandas.DataFrame`` takes it as it is.

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
    """
    return SpectralTable(_row(name, parametrization, center) for name, parametrization in svd_parametrizations(model))


@torch.no_grad()
def _row(name: str, parametrization: SVDParametrization, center: float) -> dict[str, Any]:
    sigma = parametrization.sigma.abs()
    return {
        "weight": name,
        "blocks": parametrization.chunks,
        "shape": parametrization.shape,
        "reflectors": parametrization.reflectors,
        "sigma": str(parametrization.sigma_map),
        "min": sigma.min().item(),
        "max": sigma.max().item(),
        "margin": (sigma - center).abs().max().item(),
        "trained": sum(factor.numel() for factor in parametrization.factors if factor.requires_grad),
    }


def _printable(text: str) -> str:
    """With ``x`` for ``×``, and other letters spelled out, where the terminal's encoding lacks them."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("×", "x").encode(encoding, "backslashreplace").decode(encoding)
    return text


def _in_words(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ("×" if name == "shape" else ", ").join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aligned(line: Sequence[str], widths: Sequence[int], texts: Sequence[bool]) -> str:
    """Texts to the left, numbers to the right."""
    cells = zip(line, widths, texts, strict=True)
    return "  ".join(cell.ljust(width) if text else cell.rjust(width) for cell, width, text in cells).rstrip()
