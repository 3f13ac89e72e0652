"""U and V whose reflectors are not trained: built once, and kept until the reflectors change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.householder import compact_wy
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.private import address


class FrozenProduct:
    """What is kept of one orthogonal factor. Copies and pickles begin with nothing kept.

    Writing to the reflectors through ``.data`` is seen on the CPU alone.

    Example:
        >>> import torch
        >>> from spectral_param.functional.frozen import FrozenProduct
        >>> from spectral_param.functional.factorization import ReflectorProduct
        >>> kept, u, x = FrozenProduct(), ReflectorProduct(torch.randn(7), 4, 2), torch.randn(3, 4)
        >>> kept.columns(u, 3) is kept.columns(u, 3)
        True
        >>> torch.allclose(kept.rotate(x, u), x @ kept.columns(u, 4), atol=1e-5)
        True
    """

    def __init__(self) -> None:
        self._built: dict[str, tuple[tuple[object, ...], tuple[Tensor, ...]]] = {}

    def columns(self, u: ReflectorProduct, count: int) -> Tensor:
        """The first columns of U, (…, n, count), in float32 or float64, without a graph."""
        return self._keep("columns", u, count, lambda wide: (wide.columns(count, plainly=False),))[0]

    def rotate(self, x: Tensor, u: ReflectorProduct, *, transpose: bool = False) -> Tensor:
        """Turns the rows of x by ``U = I - Z T``, Z and T kept: ``x U``, or ``x Uᵀ``, in time ``O(n m)`` a row.

        Args:
            x: (…, N, n), differentiable.
            u: U.
            transpose: ``x Uᵀ``.
        """
        if u.m == 0:
            return x
        z, t = self._keep("turn", u, 0, lambda wide: compact_wy(wide.reflectors(plainly=False)))
        return x - (x @ t.mT) @ z.mT if transpose else x - (x @ z) @ t

    def _keep(
        self, what: str, u: ReflectorProduct, count: int, build: Callable[[ReflectorProduct], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """What was built from the reflectors as they are, or is built now."""
        packed = u.packed
        state = (packed._version, address(packed), packed.dtype, checksum(packed), packed.shape, count)
        found = self._built.get(what)
        if found is None or found[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                wide = packed.detach().float() if packed.dtype.itemsize < 4 else packed.detach()
                found = state, build(u._replace(packed=wide))
            self._built[what] = found
        return found[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenProduct, ()
