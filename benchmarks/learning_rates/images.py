"""Networks for images, each as its kind is usually built, at a small size."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(width: int = 128) -> nn.Module:
    """784-width-width-10, ReLU."""
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def cnn() -> nn.Module:
    """Two convolutions, pooling, two dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 25, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm around a shortcut, which is a 1×1 convolution where the size changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


def resnet() -> nn.Module:
    """Three residual blocks of 8, 16 and 32 channels."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        ResidualBlock(8, 8, 1),
        ResidualBlock(8, 16, 2),
        ResidualBlock(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


class VisionTransformer(nn.Module):
    """Patches of 4×4 of an image 28×28, a class token, learned positions, encoder layers with the norm first."""

    def __init__(self, width: int = 32, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 50, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x.view(-1, 1, 28, 28)).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.encoder(x)[:, 0]))


def autoencoder() -> nn.Module:
    """784-128-32-128-784, which takes noise off."""
    return nn.Sequential(
        nn.Linear(784, 128),
        nn.ReLU(),
        nn.Linear(128, 32),
        nn.ReLU(),
        nn.Linear(32, 128),
        nn.ReLU(),
        nn.Linear(128, 784),
        nn.Sigmoid(),
    )


class VariationalAutoencoder(nn.Module):
    """784-128-(16, 16)-128-784; answers logits, means and log variances."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(784, 128)
        self.mean, self.log_variance = nn.Linear(128, 16), nn.Linear(128, 16)
        self.decoder = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 784))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.inner(x).relu()
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance
