"""A Spectral-LSTM: torch's own LSTM whose four recurrent matrices are kept in SVD form, trained with Lightning.

Run: python examples/spectral_lstm.py
"""

import torch
from lightning import LightningModule, Trainer, seed_everything
from torch import Tensor, nn

from datamodules import AddingProblem
from spectral_param import Band, register_svd_parametrization
from spectral_param.callbacks import SpectralMonitor


class Adder(LightningModule):
    """Adds the two marked numbers of a sequence."""

    def __init__(self, hidden_size: int = 64, radius: float = 0.2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lstm = nn.LSTM(2, hidden_size, batch_first=True)
        # the gates are stacked in one weight: an SVD each. Here, so that checkpoints load and the optimizer sees σ
        register_svd_parametrization(
            self.lstm, "weight_hh_l0", chunks=4, reflectors=16, sigma=Band(radius), init="orthogonal"
        )
        self.head = nn.Linear(hidden_size, 1)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Returns the mean squared error."""
        inputs, targets = batch
        _, (h, _) = self.lstm(inputs)
        loss = nn.functional.mse_loss(self.head(h[-1]), targets)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(epochs: int = 3, **trainer: object) -> float:
    """Trains and returns the last spectral margin, the largest |σ - 1| of the four gates."""
    seed_everything(0, verbose=False)
    monitor = SpectralMonitor(per_gate=True, prog_bar=True)
    run = Trainer(max_epochs=epochs, callbacks=monitor, logger=False, enable_checkpointing=False, **trainer)
    data = AddingProblem(length=50)
    data.setup("fit")
    run.fit(Adder(), data.train_dataloader())
    for name in monitor.history.names:
        if name != "loss":
            sigma = monitor.history[name][-1]
            print(f"{name}: σ from {sigma.min():.3f} to {sigma.max():.3f}")
    return run.callback_metrics["spectral_margin"].item()


if __name__ == "__main__":
    main()
