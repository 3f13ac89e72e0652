"""Small models, data and Trainers for the callbacks' tests."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spectral_param import Band, register_svd_parametrization
from spectral_param.nn import SpectralRNN


class Regression(LightningModule):
    """Two layers, the first in SVD form, with a learning rate that drives σ far."""

    def __init__(self, sigma=None, lr=0.1):
        super().__init__()
        torch.manual_seed(1)
        init = "weight" if sigma is None else "orthogonal"
        self.first = register_svd_parametrization(nn.Linear(6, 4), sigma=sigma, init=init)
        self.second = nn.Linear(4, 2)
        self.lr = lr
        self.losses = []

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


class Validated(Regression):
    """With a validation."""

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self(x), y))


class Sequences(LightningModule):
    """Two recurrent layers, one of them a Spectral-RNN, and a head on their last state."""

    def __init__(self, plain=None):
        super().__init__()
        torch.manual_seed(1)
        self.rnn = SpectralRNN(2, 5, batch_first=True, sigma=Band(0.1), learn_initial_state=True)
        self.plain = nn.LSTM(5, 4, batch_first=True) if plain is None else plain
        self.head = nn.Linear(4, 1)
        self.losses = []

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(self.plain(states)[0][:, -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def vectors(batches=8, batch_size=4):
    generator = torch.Generator().manual_seed(0)
    size = batches * batch_size
    data = TensorDataset(torch.randn(size, 6, generator=generator), 3 * torch.randn(size, 2, generator=generator))
    return DataLoader(data, batch_size=batch_size)


def sequences(batches=6, batch_size=4, length=9):
    generator = torch.Generator().manual_seed(0)
    size = batches * batch_size
    data = TensorDataset(torch.randn(size, length, 2, generator=generator), torch.randn(size, 1, generator=generator))
    return DataLoader(data, batch_size=batch_size)


def trainer(folder, *callbacks, **options):
    options = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "log_every_n_steps": 2} | options
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
