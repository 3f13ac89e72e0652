"""What the callbacks cost on the demo's Spectral-RNN: ``python -m benchmarks.callbacks``.

Paired: within one training, epochs with the callback alternate with epochs without it, and each is compared with its
neighbour. CPU time of the process, on one thread, so that other programs disturb little.
"""

import logging
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules import SequenceRegressor
from spectral_param.callbacks import GradientNormMonitor, SpectralClip, SpectralMonitor, SpectralPenalty

STEPS, ROUNDS = 50, 12

CALLBACKS = {
    "SpectralMonitor every 50 steps": lambda: SpectralMonitor(every_n_epochs=1),
    "SpectralMonitor every step": lambda: SpectralMonitor(every_n_steps=1),
    "SpectralMonitor, svdvals every 50 steps": lambda: SpectralMonitor(dense="*", every_n_epochs=1),
    "SpectralClip each step": lambda: SpectralClip(0.995, 1.005),
    "SpectralClip and unit reflectors each step": lambda: SpectralClip(0.995, 1.005, renormalize=True),
    "SpectralPenalty each step": lambda: SpectralPenalty(0.01),
    "GradientNormMonitor, h0, every 50 steps": lambda: GradientNormMonitor(every_n_epochs=1),
    "GradientNormMonitor, 32 times, every 50 steps": lambda: GradientNormMonitor(times=32, every_n_epochs=1),
}


class EveryOtherEpoch(Callback):
    """Hands hooks on to a callback in every other epoch, and takes the time of each."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Switches the callback on or off."""
        self.on = trainer.current_epoch % 2 == 1
        if self.on:
            self.callback.on_train_start(trainer, pl_module)
        self.begin = time.process_time()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the time."""
        self.seconds.append(time.process_time() - self.begin)
        if self.on:
            self.callback.teardown(trainer, pl_module, "fit")


def handed_on(hook: str) -> Callable[..., None]:
    """A hook that hands its arguments on where the callback is on."""
    return lambda self, *args: getattr(self.callback, hook)(*args) if self.on else None


for hook in (
    "on_train_batch_start",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
):
    setattr(EveryOtherEpoch, hook, handed_on(hook))


def overhead(callback: Callback) -> tuple[float, list[float]]:
    """Milliseconds of a step without the callback, and for each pair of epochs the share that it adds."""
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(STEPS * 128, 100, 2), torch.rand(STEPS * 128, 1))
    watch = EveryOtherEpoch(callback)
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2 * ROUNDS + 2,
        logger=False,
        callbacks=[watch],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(SequenceRegressor(input_size=2, output_size=1), DataLoader(data, batch_size=128))
    without, with_it = watch.seconds[2::2], watch.seconds[3::2]
    return 1e3 * statistics.median(without) / STEPS, [b / a - 1 for a, b in zip(without, with_it, strict=True)]


def main() -> None:
    """Prints a line for each callback."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(f"{'callback':<46} {'step, ms':>8} {'added, median':>14} {'quartiles':>16}")
    for name, make in CALLBACKS.items():
        step, shares = overhead(make())
        low, median, high = statistics.quantiles(shares, n=4)
        print(f"{name:<46} {step:>8.1f} {median:>13.2%} {low:>7.2%} … {high:.2%}")


if __name__ == "__main__":
    main()
