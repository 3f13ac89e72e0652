"""The ten programs: a network, its data and its loss, and the learning rates that are usual for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from benchmarks.learning_rates import data, images, texts


def of_classes(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy, of an answer for each image or each letter."""
    logits = model(x)
    return cross_entropy(logits.flatten(0, -2), target.flatten())


def of_denoising(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The squared error of a pixel, from an image with noise."""
    return mse_loss(model(x + 0.3 * torch.randn_like(x)), x)


def of_evidence(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The negative lower bound of the evidence of an image, by 100."""
    logits, mean, log_variance = model(x)
    divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum() / 2
    return (binary_cross_entropy_with_logits(logits, x, reduction="sum") + divergence) / len(x) / 100


class Program(NamedTuple):
    """A network and how it is trained.

    Attributes:
        model: makes the network.
        data: makes what draws batches, from the folder of the data.
        loss: of a model and a batch.
        rates: the usual learning rate by optimizer.
        steps: how many.
    """

    model: Callable[[], nn.Module]
    data: Callable[[Path], data.Draw]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    rates: dict[str, float]
    steps: int


PROGRAMS = {
    "MLP": Program(images.mlp, data.vectors, of_classes, {"adam": 1e-3, "sgd": 0.05}, 300),
    "CNN": Program(images.cnn, data.small_images, of_classes, {"adam": 1e-3, "sgd": 0.05}, 150),
    "ResNet": Program(images.resnet, data.small_images, of_classes, {"adam": 1e-3, "sgd": 0.05}, 150),
    "ViT": Program(
        images.VisionTransformer, partial(data.vectors, batch=64), of_classes, {"adam": 1e-3, "sgd": 0.05}, 200
    ),
    "denoiser": Program(images.autoencoder, data.vectors, of_denoising, {"adam": 1e-3, "sgd": 0.5}, 300),
    "VAE": Program(images.VariationalAutoencoder, data.vectors, of_evidence, {"adam": 1e-3, "sgd": 0.05}, 300),
    "LSTM": Program(texts.LSTMModel, data.text, of_classes, {"adam": 3e-3, "sgd": 0.5}, 300),
    "GPT": Program(texts.gpt, data.text, of_classes, {"adam": 1e-3, "sgd": 0.1}, 300),
    "Llama": Program(texts.llama, data.text, of_classes, {"adam": 1e-3, "sgd": 0.1}, 300),
    "Mixtral": Program(texts.mixture, data.text, of_classes, {"adam": 1e-3, "sgd": 0.1}, 300),
}
