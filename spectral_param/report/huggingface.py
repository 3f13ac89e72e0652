"""A callback for Hugging Face's ``Trainer``: singular values watched, and held below a cap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from spectral_param.report.recorder import SpectralRecorder
from spectral_param.spectrum.cap import SpectralCap

try:
    from transformers import TrainerCallback
except ImportError:  # so that all can be imported without; a Trainer, which asks for the rest of it, is not there then
    TrainerCallback = object

FILE_NAME = "spectral_recorder.pt"  # in each of the Trainer's checkpoints


class SpectralTrainerCallback(TrainerCallback):
    """Watches a model that a Hugging Face ``Trainer`` trains, and holds σ of plain weights where asked.

    Readings go into ``state.log_history``, and so into ``trainer_state.json``; the history into every checkpoint,
    from where it is taken up in the same ``output_dir``; a ``spectral_report.html`` into ``output_dir``. The loss
    in the history is the last that the Trainer has logged.

    Args:
        cap: options of :class:`~spectral_param.SpectralCap`, say ``{"max": 2.0}``; ``None``: nothing is held.
        log: called with the numbers by name and the step, say ``wandb.log``.
        recorder: options of :class:`~spectral_param.report.recorder.SpectralRecorder`, say ``dense="*"``.

    Example::

        trainer = Trainer(model, args, callbacks=[SpectralTrainerCallback({"max": 2.0}, dense="*.h.*")])
    """

    def __init__(
        self,
        cap: dict[str, Any] | None = None,
        *,
        log: Callable[[dict[str, float], int], object] | None = None,
        **recorder: Any,
    ) -> None:
        self.cap = cap
        self.log = log
        self.options = recorder
        self.recorder: SpectralRecorder | None = None
        self._held: SpectralCap | None = None
        self._loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        """Caps what training begins with, and takes the first reading."""
        model = training["model"]
        if self.cap is not None:
            self._held = SpectralCap(model, **self.cap).attach(training["optimizer"])

        def log(numbers: dict[str, float], step: int) -> None:
            state.log_history.append({**numbers, "step": step})
            if self.log is not None:
                self.log(numbers, step)

        self.recorder = SpectralRecorder(model, log=log, steps=state.global_step, **self.options)
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE_NAME
        if state.global_step and saved.is_file():
            self.recorder.load_state_dict(torch.load(saved, weights_only=True))

    def on_step_end(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        """Counts a step, and reads where it is time."""
        if self.recorder is not None:
            self.recorder.step(self._loss)

    def on_log(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        """Remembers the loss."""
        self._loss = (training.get("logs") or {}).get("loss", self._loss)

    def on_save(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        """Puts the history beside the Trainer's checkpoint."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if self.recorder is not None and state.is_world_process_zero and folder.is_dir():
            torch.save(self.recorder.state_dict(), folder / FILE_NAME)

    def on_train_end(self, args: Any, state: Any, control: Any, **training: Any) -> None:
        """Lets the optimizer go, and writes the page."""
        if self._held is not None:
            self._held.detach()
        if self.recorder is not None and state.is_world_process_zero:
            self.recorder.write_report(args.output_dir)
