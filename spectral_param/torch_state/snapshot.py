"""A tensor's numbers at one moment, so that a write to it since is seen, whatever way it went, and at once.

Note [Snapshots]
    On the CPU torch shares memory between a tensor and its snapshot until either is written to; then the writer, and
    all that look at the same storage, move to memory of their own. That holds for writes through ``.data``, which no
    version counter sees, for NumPy and DLPack, storages, pointers asked for and compiled code. So the two addresses
    tell, and no number has to be read. Where the memory is not torch's alone, since processes share it, it is a file's
    or NumPy's, or where another tensor, by which NumPy may have it, looks at the storage, the numbers are added up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.torch_state.checksum import checksum


class Snapshot:
    """Remembers a tensor, and is no copy of it unless it is written to.

    On other devices than the CPU writes through ``.data`` are not seen.

    Args:
        tensor: plain, with or without a gradient.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.snapshot import Snapshot
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> snapshot = Snapshot(weight)
        >>> snapshot.is_still(weight)
        True
        >>> weight.data[0] = 5
        >>> snapshot.is_still(weight), snapshot.has_the_numbers_of(weight)
        (False, False)
    """

    __slots__ = ("_seen", "_twin")

    def __init__(self, tensor: Tensor) -> None:
        self._twin = _twin(tensor)
        self._seen = None if self._twin is not None else _look(tensor)

    def is_still(self, tensor: Tensor) -> bool:
        """Whether a tensor has these numbers, by where they are: one that moved, as by being saved, has not."""
        if self._twin is None:
            return self._seen == _look(tensor)
        return is_still_shared(tensor, self._twin)

    def has_the_numbers_of(self, tensor: Tensor) -> bool:
        """Whether a tensor has these numbers, wherever they are."""
        if self._twin is None:
            return self._seen == _look(tensor)
        return self.is_still(tensor) or checksum(self._twin) == checksum(tensor)


def lazy_copy(tensor: Tensor) -> Tensor:
    """A tensor of its own, without a graph, that shares memory until either is written to.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.snapshot import lazy_copy
        >>> weight = torch.ones(2)
        >>> copy = lazy_copy(weight)
        >>> copy.data.zero_()
        tensor([0., 0.])
        >>> weight
        tensor([1., 1.])
    """
    return torch._lazy_clone(tensor.detach())


def is_still_shared(tensor: Tensor, copy: Tensor) -> bool:
    """Whether neither a tensor nor its :func:`lazy_copy` was written to."""
    return torch._C._data_address(tensor) == torch._C._data_address(copy)


def _twin(tensor: Tensor) -> Tensor | None:
    """A lazy copy, if every write to the memory goes by way of this tensor's storage."""
    if tensor.device.type != "cpu" or torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > 2:  # one is ours
        return None
    try:
        return lazy_copy(tensor)
    except RuntimeError:  # the memory of a file, of NumPy or of several processes
        return None


def _look(tensor: Tensor) -> tuple[object, ...]:
    version = None if tensor.is_inference() else tensor._version
    return version, torch._C._data_address(tensor), tensor.dtype, checksum(tensor)
