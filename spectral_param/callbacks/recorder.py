"""What the monitors share: reading every so many steps, logging, and a history that is saved and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from spectral_param.callbacks.logging import write
from spectral_param.callbacks.private import callbacks_of, current_step
from spectral_param.callbacks.publish import publish
from spectral_param.report import recorder
from spectral_param.report.history import History
from spectral_param.report.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Recorder(Callback):
    """A callback that takes readings in training, logs numbers of them and keeps them.

    A reading belongs to the counter that Lightning hands to loggers, the number of batches so far after which an
    optimizer stepped: it stands at the same x as the loss of the batch that it precedes.

    Args:
        every_n_steps: steps between readings, the first at step 0; ``None``: the Trainer's ``log_every_n_steps``
            (0: never).
        every_n_epochs: reads at the start of every n-th epoch instead.
        prog_bar: shows the numbers of the whole model in the progress bar.
        separator: between what is measured and where; ``"/"`` groups charts in TensorBoard, but makes
            ``ModelCheckpoint`` create folders when it monitors such a number.
        max_readings: the most readings to keep; see :class:`~spectral_param.report.history.History`.
        report: writes ``spectral_report.html`` into the Trainer's ``log_dir`` at the end of fit, one page for all
            monitors; needs a logger, whose folder that is. Should that fail, a warning says why.

    Raises:
        ValueError: if an interval is not positive, both are given, or ``max_readings`` is less than 2.
    """

    def __init__(
        self,
        *,
        every_n_steps: int | None = None,
        every_n_epochs: int | None = None,
        prog_bar: bool = False,
        separator: str = "-",
        max_readings: int = 1000,
        report: bool = True,
    ) -> None:
        if every_n_steps is not None and every_n_epochs is not None:
            raise ValueError("every_n_epochs: expected None beside every_n_steps, got both.")
        for name, interval in (("every_n_steps", every_n_steps), ("every_n_epochs", every_n_epochs)):
            if interval is not None and interval < 1:
                raise ValueError(f"{name}: expected a positive number, got {interval}.")
        if max_readings < 2:
            raise ValueError(f"max_readings: expected at least 2, got {max_readings}.")
        self.every_n_steps = None if every_n_steps is None else int(every_n_steps)  # not NumPy's, in the state's name
        self.every_n_epochs = None if every_n_epochs is None else int(every_n_epochs)
        self.prog_bar = prog_bar
        self.separator = separator
        self.report = report
        self.history = History(max_readings)
        self._last_due: int | None = None

    def is_due(self, trainer: Trainer, batch_idx: int) -> bool:
        """Whether to read at this batch: of the batches that make up a step, only at the first."""
        step = current_step(trainer)
        if self.every_n_epochs is not None:
            due = batch_idx == 0 and trainer.current_epoch % self.every_n_epochs == 0
        else:
            usual: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set from outside
            interval = self.every_n_steps or usual
            due = interval > 0 and step % interval == 0
        if not due or step == self._last_due:
            return False
        self._last_due = step
        return True

    def log_now(self, trainer: Trainer, pl_module: LightningModule, numbers: dict[str, float], headline: str) -> None:
        """Logs numbers that are equal on all ranks, the headline in the progress bar where asked for.

        They go to the loggers and to ``trainer.callback_metrics`` directly. Lightning's ``log`` would write them only
        every ``log_every_n_steps``, stale ones again and again, and would go over all of them at every step.
        """
        if self.prog_bar and headline in numbers:
            pl_module.log(headline, numbers[headline], on_step=True, on_epoch=False, prog_bar=True, logger=False)
        write(trainer, numbers)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins afresh."""
        self._last_due = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the page about the run, the last of several monitors for all of them."""
        monitors = callbacks_of(trainer, Recorder)
        if not trainer.loggers or self is not monitors[-1] or not any(monitor.report for monitor in monitors):
            return
        folder = trainer.log_dir  # asked on every rank, being a broadcast
        if folder is not None and trainer.is_global_zero:
            try:
                publish(trainer, pl_module, [monitor.state_dict() for monitor in monitors], Path(folder))
            except Exception as error:  # whatever it is, what has been trained is worth more than a page about it
                rank_zero_warn(
                    f"The report on singular values is not written, since {type(error).__name__}: {error}. "
                    f"Training is done; `python -m spectral_param report {folder}` tries again."
                )

    def figures(self) -> dict[str, Figure]:
        """Draws what has been read so far: matplotlib figures by title; see :mod:`spectral_param.report.figures`."""
        from spectral_param.report.album import draw  # loads matplotlib, which training does without

        run = Run()
        run.add_state(self.state_dict())
        return draw(run)

    def state_dict(self) -> dict[str, Any]:
        """The history and the software's versions, as CPU tensors and plain values."""
        return {"history": self.history.state_dict(), "versions": versions()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the history up again."""
        self.history.load_state_dict(state_dict["history"])


def versions() -> dict[str, str]:
    """Versions of the software at work, by package."""
    return recorder.versions() | {"lightning": lightning.__version__}
