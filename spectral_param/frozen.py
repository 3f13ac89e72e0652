"""Columns of U and V whose reflectors are not trained: built once, and kept until the reflectors change."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spectral_param.householder import householder_product, traced_or_transformed
from spectral_param.trapezoid import unpack


class _Built(NamedTuple):
    state: tuple[int, int, torch.dtype]
    columns: Tensor


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def stands_still(packed: Tensor) -> bool:
    """Whether these packed reflectors are a plain tensor that nothing trains or traces."""
    plain = type(packed) in (Tensor, torch.nn.Parameter)
    return plain and not packed.requires_grad and not packed.is_inference() and not traced_or_transformed()


def kept_columns(packed: Tensor, n: int, m: int, columns: int) -> Tensor:
    """The first columns of the product of packed reflectors, built anew only where these have changed in place.

    Args:
        packed: (…, packed_size(n, m)), see :func:`stands_still`. Writing through ``.data`` goes unseen.
        n: rows.
        m: reflectors.
        columns: how many.

    Returns:
        (…, n, columns) in float32 or float64, without a graph.

    Example:
        >>> import torch
        >>> from spectral_param.frozen import kept_columns
        >>> packed = torch.randn(7)
        >>> kept_columns(packed, 4, 2, 3) is kept_columns(packed, 4, 2, 3)
        True
    """
    state = (packed._version, packed.data_ptr(), packed.dtype)
    built = _kept.get(packed)
    if built is None or built.state != state or built.columns.shape[-1] != columns:
        with torch.inference_mode(False), torch.no_grad():
            wide = packed.detach().float() if packed.dtype.itemsize < 4 else packed.detach()
            built = _Built(state, householder_product(unpack(wide, n, m), columns))
        _kept[packed] = built
    return built.columns
