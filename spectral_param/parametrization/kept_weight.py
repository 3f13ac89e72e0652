"""W kept from one read to the next where nothing is trained, for those who read it many times in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.torch_state.checksum import checksum


class KeptWeight:
    """What was built from factors as they are. Copies and pickles begin with nothing kept.

    On the CPU alone: elsewhere writes through ``.data`` would not be seen.

    Example:
        >>> import torch
        >>> from spectral_param.parametrization.kept_weight import KeptWeight
        >>> kept, factor = KeptWeight(), torch.ones(2)
        >>> first = kept.weight([factor], lambda: 2 * factor)
        >>> kept.weight([factor], lambda: 2 * factor) is first
        True
        >>> factor.data.add_(1)
        tensor([2., 2.])
        >>> kept.weight([factor], lambda: 2 * factor)
        tensor([4., 4.])
    """

    def __init__(self) -> None:
        self.kept: tuple[Tensor, tuple[object, ...]] | None = None

    def weight(self, sources: Sequence[Tensor], build: Callable[[], Tensor], *settings: object) -> Tensor:
        """W as it was built last, or is built now, without a graph.

        Args:
            sources: the tensors that it depends on.
            build: makes it.
            settings: what else it depends on.
        """
        if not all(map(_is_watchable, sources)):
            return build()
        if self.kept is not None:
            weight, seen = self.kept
            if seen == (*_looks(*sources, weight), *settings):
                return weight
        with torch.inference_mode(False), torch.no_grad():
            weight = build()
        self.kept = weight, (*_looks(*sources, weight), *settings)
        return weight

    def clear(self) -> None:
        """Keeps nothing."""
        self.kept = None

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptWeight, ()


def _is_watchable(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" and not tensor.is_inference()


def _looks(*tensors: Tensor) -> tuple[object, ...]:
    return checksum(*tensors), *((t._version, t.requires_grad, t.dtype, t.data_ptr()) for t in tensors)
