"""A number that shows whether a tensor was written to where its version counter does not, as through ``.data``."""

from __future__ import annotations

import torch
from torch import Tensor


def checksum(tensor: Tensor) -> float | None:
    """The sum of all entries, 0 where that is NaN; ``None`` where it would have to wait for a device.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.checksum import checksum
        >>> checksum(torch.ones(2, 3))
        6.0
    """
    if tensor.device.type != "cpu":
        return None
    total = tensor.detach().sum(dtype=torch.float64 if tensor.dtype.itemsize < 4 else None).item()
    return total if total == total else 0.0
