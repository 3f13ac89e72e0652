"""What a monitor has read so far: vectors by name and training step, in bounded memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOSS = "loss"  # what the loss of each step is called among the readings


class History:
    """Readings of named vectors, one row a training step, at most ``cap`` rows.

    When the rows reach the cap every second one is dropped, and from then on only every second reading is kept, so that
    the rows stay evenly spaced. Values are held as float32 on the CPU: 4 bytes each.

    Args:
        cap: the most rows to keep, at least 2.

    Raises:
        ValueError: if ``cap`` is less than 2.

    Example:
        >>> import torch
        >>> from spectral_param.report.history import History
        >>> history = History(cap=4)
        >>> for step in range(6):
        ...     history.record(step, {"sigma": torch.tensor([1.0, step])})
        >>> history.steps
        [0, 2, 4]
        >>> history["sigma"].shape
        torch.Size([3, 2])
    """

    def __init__(self, cap: int = 1000) -> None:
        if cap < 2:
            raise ValueError(f"cap: expected at least 2 readings, got {cap}.")
        self.cap = cap
        self.steps: list[int] = []
        self._rows: list[dict[str, Tensor]] = []
        self._stride = 1  # readings to one row
        self._seen = 0  # readings so far

    def __len__(self) -> int:
        return len(self.steps)

    def __contains__(self, name: object) -> bool:
        return any(name in row for row in self._rows)

    def __getitem__(self, name: str) -> Tensor:
        """All readings of one vector, (rows, length); NaN where a step lacks it, or is of a shorter one.

        ``KeyError`` for one that has none.
        """
        if name not in self:
            raise KeyError(f"{name!r}: expected one of {', '.join(self.names) or 'none, nothing was read yet'}.")
        width = max(row[name].numel() for row in self._rows if name in row)
        readings = torch.full((len(self._rows), width), torch.nan)
        for reading, row in zip(readings, self._rows, strict=True):
            if name in row:
                reading[: row[name].numel()] = row[name]
        return readings

    def readings(self, name: str) -> list[Tensor | None]:
        """The readings of one vector, each of its own length; ``None`` for a step that lacks it."""
        return [row.get(name) for row in self._rows]

    @property
    def names(self) -> list[str]:
        """Names of the vectors, in the order of their first reading."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def record(self, step: int, values: dict[str, Tensor]) -> None:
        """Adds the readings of a step; rows at or after that step, of an earlier run, give way."""
        self.rewind(step)
        if self._seen % self._stride == 0:
            self.steps.append(step)
            self._rows.append({name: _compact(value) for name, value in values.items()})
        self._seen += 1
        if len(self.steps) >= self.cap:
            self.steps, self._rows = self.steps[::2], self._rows[::2]
            self._stride *= 2

    def rewind(self, step: int) -> None:
        """Forgets every row at or after ``step``."""
        while self.steps and self.steps[-1] >= step:
            self.steps.pop()
            self._rows.pop()
            self._seen = len(self.steps) * self._stride
        if not self.steps:
            self._stride, self._seen = 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Everything as tensors and plain numbers, loadable with ``weights_only=True``."""
        return {
            "steps": torch.tensor(self.steps, dtype=torch.int64),
            "values": {name: self[name] for name in self.names},
            "lengths": {name: torch.tensor([_length(row.get(name)) for row in self._rows]) for name in self.names},
            "stride": self._stride,
            "seen": self._seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the readings of :meth:`state_dict`."""
        self.steps = state["steps"].tolist()
        values, lengths = state["values"], state.get("lengths", {})  # which older versions lack
        self._rows = [
            {
                name: rows[i, : lengths[name][i] if name in lengths else None].clone()
                for name, rows in values.items()
                if not rows[i].isnan().all()
            }
            for i in range(len(self.steps))
        ]
        self._stride, self._seen = state["stride"], state["seen"]


def _length(reading: Tensor | None) -> int:
    return 0 if reading is None else reading.numel()


def _compact(value: Tensor) -> Tensor:
    return value.detach().to("cpu", torch.float32, copy=True).reshape(-1)
