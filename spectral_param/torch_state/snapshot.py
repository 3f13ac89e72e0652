"""The numbers of tensors at one moment, so that a write to them since is seen, whatever way it went, and at once.

Note [Snapshots]
    On the CPU torch shares memory between a tensor and its lazy copy until either is written to; then the writer, and
    all that look at the same storage, move to memory of their own. That holds for writes through ``.data``, which no
    version counter sees, for NumPy and DLPack, storages, pointers asked for and compiled code. So addresses tell, and
    no number has to be read. Where the memory is not torch's alone, since processes share it, it is a file's or
    NumPy's, or where another tensor, by which NumPy may have it, looks at the storage, the numbers are added up.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spectral_param.torch_state.checksum import checksum
from spectral_param.torch_state.private import address, lazy_clone, memory_users


class Snapshot:
    """Remembers tensors, and is no copy of them unless they are written to.

    On other devices than the CPU writes through ``.data`` are not seen.

    Args:
        tensors: plain ones, with or without a gradient.

    Example:
        >>> import torch
        >>> from spectral_param.torch_state.snapshot import Snapshot
        >>> weight = torch.nn.Parameter(torch.ones(3))
        >>> snapshot = Snapshot([weight])
        >>> snapshot.is_still([weight])
        True
        >>> weight.data[0] = 5
        >>> snapshot.is_still([weight])
        False
    """

    __slots__ = ("_addresses", "_looks", "_twins")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._twins = list(map(_twin, tensors))
        self._addresses = list(map(address, tensors))  # the twins' too, for as long as they are there
        self._looks = self._seen(tensors) if None in self._twins else None

    def is_still(self, tensors: Sequence[Tensor]) -> bool:
        """Whether the tensors have their numbers, and where they were: one may move, as by being saved."""
        if list(map(address, tensors)) != self._addresses:
            return False
        return self._looks is None or self._looks == self._seen(tensors)

    def _seen(self, tensors: Sequence[Tensor]) -> list[object]:
        """What those without a twin look like."""
        return [_look(tensor) for tensor, twin in zip(tensors, self._twins, strict=True) if twin is None]


def lazy_copy(tensor: Tensor) -> Tensor:
    """A tensor of its own, without a graph, that on the CPU shares memory until either is written to, where it can.

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
    try:
        return lazy_clone(tensor.detach())
    except RuntimeError:  # the memory of a file, of NumPy or of several processes
        return tensor.detach().clone()


def _twin(tensor: Tensor) -> Tensor | None:
    """A lazy copy, if every write to the memory goes by way of this tensor's storage."""
    if tensor.device.type != "cpu" or memory_users(tensor) > 1:
        return None
    copy = lazy_copy(tensor)
    return copy if address(copy) == address(tensor) else None


def _look(tensor: Tensor) -> tuple[object, ...]:
    return None if tensor.is_inference() else tensor._version, tensor.dtype, checksum(tensor)
