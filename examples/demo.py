"""The adding problem at L = 100: a Spectral-RNN beside an LSTM and a plain RNN of the same size, watched as they learn.

The plain ones start as well as they can: the LSTM's forget gate open, the RNN, of leaky ReLU, at an orthogonal matrix.
Run it with ``make demo``. Nothing is downloaded; it ends with a table and a picture in ``runs/demo``.
"""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger
from rich.console import Console
from rich.table import Table

from datamodules import AddingProblem
from lightning_modules import SequenceRegressor
from spectral_param.callbacks import GradientNormMonitor, SpectralMonitor
from spectral_param.report.figures import margin_gradient_loss_figure

MODELS: dict[str, dict[str, Any]] = {
    "Spectral-RNN": {"cell": "spectral-rnn", "plain_rate": True},
    "LSTM": {"cell": "lstm", "start": "paper"},
    "RNN": {"cell": "irnn", "start": "paper", "nonlinearity": "leaky_relu", "negative_slope": 0.2},
}
RADIUS = 0.01
LENGTH, EPOCHS = 100, 20  # of 100 batches
FOLDER = Path("runs") / "demo"

Row = dict[str, str]
Curves = dict[str, tuple[Any, Any]]


class Lines(Callback):
    """Says how far training has come, a line every few epochs: a progress bar, where there is no terminal for one."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Prints the line."""
        if trainer.current_epoch % 5 == 4:
            loss = float(trainer.callback_metrics["train_loss"])
            print(f"  epoch {trainer.current_epoch + 1}, loss {loss:.4f}", flush=True)


def train(name: str, length: int, epochs: int, seconds: float | None) -> tuple[Row, Curves, float]:
    """Trains one model for some epochs or seconds; answers its row of the table, its curves and its time."""
    seed_everything(0, verbose=False)
    model = SequenceRegressor(input_size=2, output_size=1, hidden_size=128, radius=RADIUS, **MODELS[name])
    data = AddingProblem(length)
    registered = name == "Spectral-RNN"
    sigma = SpectralMonitor(
        every_n_steps=20,
        prog_bar=registered,
        **({} if registered else {"weights": (), "dense": "*.weight_hh_l0", "per_gate": True}),
    )
    gradients = GradientNormMonitor(times=(0,), weights="*" if registered else (), every_n_steps=20)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=epochs if seconds is None else -1,
        max_time=None if seconds is None else timedelta(seconds=seconds),
        logger=CSVLogger("runs", name="demo", version=name),
        callbacks=[sigma, gradients, TQDMProgressBar(refresh_rate=20) if sys.stdout.isatty() else Lines()],
        enable_progress_bar=sys.stdout.isatty(),
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=20,
    )
    print(f"\n{name}: " + (f"{epochs} epochs of 100 batches" if seconds is None else f"{seconds:.0f} seconds"))
    start = time.perf_counter()
    trainer.fit(model, data)
    took = time.perf_counter() - start
    [result] = trainer.test(model, data, verbose=False)

    margins = torch.stack([(sigma.history[w] - 1).abs().amax(1) for w in sigma.history.names if w != "loss"]).amax(0)
    [state] = [n for n in gradients.history.names if n.endswith(".h")]
    curves = {
        "margin": (sigma.history.steps, margins),
        "gradient": (gradients.history.steps, gradients.history[state][:, 0]),
        "loss": (gradients.history.steps, gradients.history["loss"][:, 0]),
    }
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    row = {
        "model": name,
        "parameters": f"{parameters:,}",
        "steps": f"{trainer.global_step:,}",
        "test MSE": f"{result['test_mse']:.4f}",
        "largest |σ - 1|": f"{margins[-1]:.4f}",
        "seconds": f"{took:.0f}",
    }
    return row, curves, took


def main(length: int = LENGTH, epochs: int = EPOCHS) -> None:
    """Trains the three models and shows what came out."""
    torch.set_num_threads(1)  # a second thread gains little at this size
    torch.set_flush_denormal(True)  # gradients that vanish would be slow on some processors: it is fair to the others
    warnings.filterwarnings("ignore", ".*does not have many workers")
    warnings.filterwarnings("ignore", ".*LeafSpec.* is deprecated", FutureWarning)  # between Lightning and torch
    rows, curves, seconds = [], {}, None
    for name in MODELS:
        row, curves[name], took = train(name, length, epochs, seconds)
        rows.append(row)
        seconds = seconds or took
    baseline = AddingProblem(length).baseline_mse
    table = Table(
        title=f"Adding problem, L = {length}. A constant answer has MSE {baseline:.3f}; "
        f"the others train for the same time as the {rows[0]['model']}."
    )
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        table.add_row(*row.values())
    print()
    Console().print(table)

    figure = margin_gradient_loss_figure(curves, radius=RADIUS, baseline=baseline)
    path = FOLDER / "adding.png"
    figure.savefig(path)
    print(f"Loss, spectral margin and gradient magnitude by step: {path.resolve()}")


if __name__ == "__main__":
    main()
