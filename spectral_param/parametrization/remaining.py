"""The part of a frozen weight's spectrum that nobody trains: found when it is first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.leading import trailing_singular_values, trailing_vectors
from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.private import address
from spectral_param.torch_state.quantized import is_quantized

_ROUNDING = 0.01  # of the largest σ


class RemainingSpectrum:
    """What the leading triplets of W₀ leave, until W₀ changes. Copies and pickles begin with nothing kept.

    Raises ``ValueError`` where W₀ has other leading triplets, since it was written to in place.

    Writing to W₀ through ``.data`` is seen on the CPU alone.

    Example:
        >>> import torch
        >>> from spectral_param.functional.leading import leading_triplets
        >>> from spectral_param.parametrization.remaining import RemainingSpectrum
        >>> base = torch.diag(torch.tensor([1.0, 3.0, 2.0]))
        >>> leading = [part.unsqueeze(0) for part in leading_triplets(base, 1)]
        >>> RemainingSpectrum().values(base, base.unsqueeze(0), *leading)
        tensor([[2., 1.]], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[tuple[object, ...], tuple[Tensor, ...]]] = {}

    def values(self, base: Tensor, *blocks: Tensor) -> Tensor:
        """The other σ, (chunks, k - r), float64.

        Args:
            base: the tensor that says whether W₀ has changed.
            blocks: W₀, U_r, σ and V_r of the blocks, each with a first dimension of them.
        """
        return self._keep("values", base, blocks, lambda *block: (trailing_singular_values(*block),))[0]

    def vectors(self, base: Tensor, *blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Their vectors, (chunks, p, k - r) and (chunks, q, k - r), float64; arguments as for :meth:`values`."""
        u, v = self._keep("vectors", base, blocks, trailing_vectors)
        return u, v

    @torch.no_grad()
    def _keep(
        self, what: str, base: Tensor, blocks: tuple[Tensor, ...], find: Callable[..., tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        version = None if base.is_inference() else base._version
        place: tuple[object, ...] = (id(base),) if is_quantized(base) else (address(base), checksum(base))
        state = (version, base.dtype, base.shape, *place)
        if what not in self._found or self._found[what][0] != state:
            for block in zip(*blocks, strict=True):
                _check(*block)
            each = [find(*block) for block in zip(*blocks, strict=True)]
            self._found[what] = state, tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        return self._found[what][1]

    def __reduce__(self) -> tuple[Any, ...]:
        return RemainingSpectrum, ()


def _check(w: Tensor, u: Tensor, sigma: Tensor, v: Tensor) -> None:
    """Raises ``ValueError`` if triplets, kept in half precision perhaps, are not those of W₀."""
    u, sigma, v = u.double(), sigma.double(), v.double()
    if sigma.numel() and not (w.double() @ v - u * sigma).abs().amax() <= _ROUNDING * sigma.abs().amax():
        raise ValueError(
            "weight: its frozen base was written to in place, and has other singular values than it was registered "
            "with; assign the weight, or register it anew."
        )
