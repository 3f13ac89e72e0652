"""U and V whose reflectors are not trained: built once, and kept until the reflectors change."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spectral_param.functional.householder import compact_wy, householder_product
from spectral_param.functional.packing import unpack
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.modes import traced_or_transformed


class _Built(NamedTuple):
    state: tuple[object, ...]
    tensors: tuple[Tensor, ...]


_kept: dict[str, WeakTensorKeyDictionary] = {"columns": WeakTensorKeyDictionary(), "turn": WeakTensorKeyDictionary()}


def stands_still(packed: Tensor) -> bool:
    """Whether these packed reflectors are a plain tensor that nothing trains or traces."""
    plain = type(packed) in (Tensor, torch.nn.Parameter)
    return not traced_or_transformed() and plain and not packed.requires_grad and not packed.is_inference()


def kept_columns(packed: Tensor, n: int, m: int, columns: int) -> Tensor:
    """The first columns of the product of packed reflectors, built anew only where these have changed in place.

    Args:
        packed: (…, packed_size(n, m)), see :func:`stands_still`. Writing through ``.data`` is seen on the CPU alone.
        n: rows.
        m: reflectors.
        columns: how many.

    Returns:
        (…, n, columns) in float32 or float64, without a graph.

    Example:
        >>> import torch
        >>> from spectral_param.functional.frozen import kept_columns
        >>> packed = torch.randn(7)
        >>> kept_columns(packed, 4, 2, 3) is kept_columns(packed, 4, 2, 3)
        True
    """
    return _keep("columns", packed, (columns,), lambda wide: (householder_product(unpack(wide, n, m), columns),))[0]


def turned(x: Tensor, packed: Tensor | None, n: int, m: int, *, transpose: bool = False) -> Tensor:
    """Turns the rows of x by ``U = I - Z T``, Z and T kept: ``x U``, or ``x Uᵀ``, in time ``O(n m)`` a row.

    Args:
        x: (…, N, n), differentiable.
        packed: as for :func:`kept_columns`; ``None`` for U = I.
        n: rows of U.
        m: reflectors.
        transpose: ``x Uᵀ``.

    Example:
        >>> import torch
        >>> from spectral_param.functional.frozen import kept_columns, turned
        >>> x, packed = torch.randn(3, 4), torch.randn(7)
        >>> torch.allclose(turned(x, packed, 4, 2), x @ kept_columns(packed, 4, 2, 4), atol=1e-5)
        True
    """
    if packed is None:
        return x
    z, t = _keep("turn", packed, (), lambda wide: compact_wy(unpack(wide, n, m)))
    return x - (x @ t.mT) @ z.mT if transpose else x - (x @ z) @ t


def _keep(
    what: str, packed: Tensor, arguments: tuple[int, ...], build: Callable[[Tensor], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """What was built from the reflectors as they are, or is built now."""
    state = (packed._version, packed.data_ptr(), packed.dtype, checksum(packed), *arguments)
    built = _kept[what].get(packed)
    if built is None or built.state != state:
        with torch.inference_mode(False), torch.no_grad():
            wide = packed.detach().float() if packed.dtype.itemsize < 4 else packed.detach()
            built = _Built(state, build(wide))
        _kept[what][packed] = built
    return built.tensors
