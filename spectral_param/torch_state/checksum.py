"""What a tensor's entries add up to, to see a write that its version counter does not, as through ``.data``."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 8  # bytes that are added up as one number
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
    flat = tensor.detach().contiguous().view(-1)
    if flat.storage_offset() * flat.itemsize % _WORD:
        flat = flat.clone()
    octets = flat.view(torch.uint8)
    whole = octets.numel() // (_WORD * _LANES) * (_WORD * _LANES)
    words = octets[:whole].view(torch.int64)
    by_block, by_lane = words.view(_LANES, -1).sum(1), words.view(-1, _LANES).sum(0)
    return (*by_block.tolist(), *by_lane.tolist(), *octets[whole:].tolist())
