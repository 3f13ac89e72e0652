"""A long text read as parallel streams, window after window."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

# cross_entropy leaves such targets out
NO_TARGET = -100


class Share(NamedTuple):
    """The part of a process: ``rank`` of ``num_replicas``."""

    num_replicas: int = 1
    rank: int = 0


ALONE = Share()


class TokenStreams(Dataset[tuple[Tensor, Tensor]]):
    """Successive windows of a text that is cut into ``batch_size`` contiguous streams on each process.

    Window i goes on in every stream where window i - 1 stopped, so that a recurrent state may be carried from one to
    the next. Every token but the first is a target exactly once, over all windows and processes. Streams differ in
    length by one at most; a shorter one ends with the input 0 and the target -100, which cross-entropy leaves out.

    Args:
        tokens: the text, ``(n,)``, int64.
        batch_size: streams of this process.
        seq_len: steps of a window; the last one may be shorter.
        share: the processes that share the text.

    Raises:
        ValueError: if there is no stream, or one is shorter than ``seq_len``.

    Example:
        >>> streams = TokenStreams(torch.arange(9), batch_size=2, seq_len=3)
        >>> streams[1]
        (tensor([[3],
                [7]]), tensor([[4],
                [8]]))
    """

    def __init__(self, tokens: Tensor, batch_size: int, seq_len: int, share: Share = ALONE) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least one stream, got {batch_size}.")
        count, streams = len(tokens) - 1, batch_size * share.num_replicas
        if not 1 <= seq_len <= count // streams:
            raise ValueError(
                f"seq_len: expected from 1 to {count // streams}, the steps of each of {streams} streams over "
                f"{len(tokens)} tokens, got {seq_len}."
            )
        starts = torch.arange(streams + 1) * count // streams
        own = slice(share.rank * batch_size, (share.rank + 1) * batch_size)
        steps = torch.arange(-(-count // streams))
        positions = starts[:-1, None][own] + steps
        beyond = positions >= starts[1:, None][own]
        positions = positions.clamp(max=count - 1)
        self.seq_len = seq_len
        self.inputs = tokens[positions].masked_fill(beyond, 0)
        self.targets = tokens[positions + 1].masked_fill(beyond, NO_TARGET)

    def __len__(self) -> int:
        return -(-self.inputs.shape[1] // self.seq_len)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"index: expected from 0 to {len(self) - 1}, got {index}.")
        window = slice(index * self.seq_len, (index + 1) * self.seq_len)
        return self.inputs[:, window], self.targets[:, window]
