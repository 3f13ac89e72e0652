"""What a tensor's entries add up to, to see a write that its version counter does not, as through ``.data``."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an entry
_LANES = 64


def checksum(tensor: Tensor) -> tuple[int, ...] | None:
    """Sums of the entries' bits by where they stand, so that an order changed is seen too.

    Exact, whatever the number of threads. ``None`` where it would have to wait for a device.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.checksum import checksum
        >>> x = torch.arange(100.0)
        >>> checksum(x) == checksum(x.clone()), checksum(x) == checksum(x.flip(0))
        (True, False)
    """
    if tensor.device.type != "cpu":
        return None
    bits = tensor.detach().contiguous().view(-1).view(_BITS[tensor.dtype.itemsize])
    whole = bits.numel() // _LANES * _LANES
    by_block, by_lane = bits[:whole].view(_LANES, -1).sum(1), bits[:whole].view(-1, _LANES).sum(0)
    return (*by_block.tolist(), *by_lane.tolist(), *bits[whole:].tolist())
