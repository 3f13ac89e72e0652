"""What a tensor's entries add up to, to see a write that its version counter does not, as through ``.data``."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.torch_state.shards import own_part

_WORD = 8  # bytes that are added up as one number
_LANES = 64

_SMALL = 1 << 18  # bytes of tensors that are sooner put together than summed one by one


def checksum(*tensors: Tensor) -> tuple[int, ...] | None:
    """Sums of the entries' bits by where they stand, so that an order changed is seen too; of one tensor or several.

    Exact, whatever the number of threads; of a shard, those of this rank's part. ``None`` where it would have to wait
    for a device.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.checksum import checksum
        >>> x = torch.arange(100.0)
        >>> checksum(x) == checksum(x.clone()), checksum(x) == checksum(x.flip(0))
        (True, False)
    """
    tensors = tuple(own_part(tensor) for tensor in tensors)
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return None
    if len(tensors) > 1 and sum(tensor.nbytes for tensor in tensors) > _SMALL:
        return tuple(number for tensor in tensors for number in checksum(tensor) or ())
    pieces = [tensor.detach().contiguous().view(-1) for tensor in tensors]
    flat = pieces[0] if len(pieces) == 1 else torch.cat([piece.view(torch.uint8) for piece in pieces])
    if flat.storage_offset() * flat.itemsize % _WORD:
        flat = flat.clone()
    octets = flat.view(torch.uint8)
    whole = octets.numel() // (_WORD * _LANES) * (_WORD * _LANES)
    words = octets[:whole].view(torch.int64)
    by_block, by_lane = words.view(_LANES, -1).sum(1), words.view(-1, _LANES).sum(0)
    return (*torch.cat([by_block, by_lane]).tolist(), *octets[whole:].tolist())
