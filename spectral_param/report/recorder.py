"""Watching singular values in any training loop."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spectral_param.report.history import LOSS, History
from spectral_param.report.watch import Watch, to_keep
from spectral_param.spectrum.operator import Images
from spectral_param.spectrum.statistics import STATISTICS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class SpectralRecorder:
    """Reads the singular values of a model's weights in a training loop of any kind, logs and keeps them.

    The history, the pictures and the page are those of :class:`~spectral_param.callbacks.SpectralMonitor`, which reads
    by the same :class:`~spectral_param.report.watch.Watch`: a row holds σ from before a step, and the loss of that
    step. On sharded models every rank has to take part.

    Args:
        model: as it is when training begins: on its device, loaded, sharded. The first reading is taken here, and
            logged with the first step.
        weights: name patterns of the weights in SVD form to watch.
        dense: name patterns of plain weights to watch too.
        every_n_steps: steps between readings.
        log: called with the numbers by name and the step, say ``wandb.log``, ``mlflow.log_metrics`` or
            ``accelerator.log``; ``None``: nothing is logged.
        dense_every: see :class:`~spectral_param.callbacks.SpectralMonitor`, as the options below.
        per_gate: reads gates as weights of their own.
        statistics: which numbers to log.
        center: what margins are measured from.
        operator: images of the convolutions that are to be read as maps of them.
        max_readings: the most readings to keep.
        steps: how many were taken before, by a run that this one goes on without its history.

    Raises:
        TypeError: if patterns are no strings.
        ValueError: for an unknown statistic, a bad interval or count, an image of no convolution, or if there is
            nothing to watch.

    Example:
        >>> import torch
        >>> from spectral_param.report.recorder import SpectralRecorder
        >>> layer = torch.nn.Linear(2, 2)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        >>> recorder = SpectralRecorder(layer, dense="*", every_n_steps=2)
        >>> for _ in range(5):
        ...     loss = layer(torch.ones(2)).square().sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     recorder.step(loss)
        >>> recorder.history.steps, recorder.history["weight"].shape
        ([0, 2, 4], torch.Size([3, 2]))
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        weights: str | Sequence[str] = "*",
        dense: str | Sequence[str] = (),
        every_n_steps: int = 50,
        log: Callable[[dict[str, float], int], object] | None = None,
        dense_every: int | None = None,
        per_gate: bool = False,
        statistics: Sequence[str] = STATISTICS,
        center: float = 1.0,
        operator: Images | None = None,
        max_readings: int = 1000,
        steps: int = 0,
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps: expected a positive number, got {every_n_steps}.")
        if steps < 0:
            raise ValueError(f"steps: expected how many were taken, got {steps}.")
        self.watch = Watch(
            weights=weights,
            dense=dense,
            dense_every=dense_every,
            per_gate=per_gate,
            statistics=statistics,
            center=center,
            operator=operator,
        )
        self.model = model
        self.every_n_steps = every_n_steps
        self.log = log
        self.history = History(max_readings)
        self.described = self.watch.describe(model)
        if not self.described:
            raise ValueError("weights, dense: expected patterns of weights, they match none of the model.")
        self.steps = steps  # that were taken
        self._pending: dict[str, Tensor] | None = None
        self._unlogged = self._read_if_due()  # until it is clear that no other state is loaded

    def step(self, loss: Tensor | float | None = None) -> None:
        """To be called once after every step of the optimizer.

        Args:
            loss: of the batch that was stepped on.
        """
        self._log(self._unlogged)
        if self._pending is not None:
            self.history.record(self.steps, self._pending | ({} if loss is None else {LOSS: torch.as_tensor(loss)}))
            self._pending = None
        self.steps += 1
        self._log(self._read_if_due())

    def write_report(self, path: str | Path, settings: dict[str, Any] | None = None) -> Path:
        """Reads what training arrived at and writes the page about the run.

        Args:
            path: the file, or a folder for a ``spectral_report.html`` in it.
            settings: of the run, to stand on the page.

        Returns:
            The path of the page.
        """
        from spectral_param.report.page import FILE_NAME, write_report  # these load what training does without
        from spectral_param.report.run import Run

        self.history.record(self.steps, to_keep(self.watch.read(self.model), self.described))
        path = Path(path)
        run = Run(name=path.stem if path.suffix else path.name, settings=settings or {})
        run.add_state(self.state_dict())
        return write_report(run, path if path.suffix else path / FILE_NAME)

    def figures(self) -> dict[str, Figure]:
        """Draws what has been read so far: matplotlib figures by title."""
        from spectral_param.report.album import draw  # these load what training does without
        from spectral_param.report.run import Run

        run = Run()
        run.add_state(self.state_dict())
        return draw(run)

    def state_dict(self) -> dict[str, Any]:
        """The history, the count of steps and what the weights are, as CPU tensors and plain values."""
        return {
            "history": self.history.state_dict(),
            "versions": versions(),
            "described": self.described,
            "center": self.watch.center,
            "steps": self.steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes them up again, for a model that has been loaded before. What it was then has been logged already."""
        self.history.load_state_dict(state_dict["history"])
        self.steps = state_dict["steps"]
        self.watch.begin()
        self._read_if_due()
        self._unlogged = {}

    def _read_if_due(self) -> dict[str, float]:
        """Takes a reading where it is time; the numbers to log."""
        self._pending, numbers = None, dict[str, float]()
        if self.steps % self.every_n_steps == 0:
            readings, numbers = self.watch.take(self.model)
            self._pending = to_keep(readings, self.described)
        return numbers

    def _log(self, numbers: dict[str, float]) -> None:
        if numbers and self.log is not None:
            self.log(numbers, self.steps)
        self._unlogged = {}


def versions() -> dict[str, str]:
    """Versions of the software at work, by package."""
    library = sys.modules[__name__.partition(".")[0]]  # whose face stands above this room
    return {
        "spectral_param": library.__version__,
        "torch": str(torch.__version__),  # TorchVersion does not load with weights_only
        "python": platform.python_version(),
    }
