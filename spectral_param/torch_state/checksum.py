"""What a tensor's entries add up to, to see a write that its version counter does not, as through ``.data``.

Note [Two grids]
    The n words of eight bytes are laid out row by row in two grids, of w and of w + 1 columns, w = ⌊√n⌋ + 1. Each
    column is added up modulo 2⁶⁴, and what is left behind the last whole row of a grid stands as it is. No two words
    share a column in both grids, since w (w + 1) > n; and n being no multiple of both, something is left behind in
    one. So what is done to two words or to all of them is seen, where a sum alone does not see the highest bit turned
    in an even number of words, as by ``neg_()`` of a float64 tensor.
"""

from __future__ import annotations

from math import isqrt

import torch
from torch import Tensor

from spectral_param.torch_state.shards import own_part

_WORD = 8  # bytes that are added up as one number
_SMALL = 1 << 18  # bytes of tensors that are sooner put together than summed one by one


def checksum(*tensors: Tensor) -> tuple[int, ...] | None:
    """Sums of the entries' bits by where they stand, Note [Two grids], of one tensor or several.

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
    many = octets.numel() // _WORD
    words, rest = octets[: many * _WORD].view(torch.int64), octets[many * _WORD :]
    sums = []
    for columns in (isqrt(many) + 1, isqrt(many) + 2):
        rows = many // columns
        sums += [words[: rows * columns].view(rows, columns).sum(0), words[rows * columns :]]
    return (*torch.cat(sums).tolist(), *rest.tolist())
