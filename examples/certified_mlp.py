"""A Lipschitz-bounded MLP on MNIST, and how far each image may be moved without its answer changing.

Run: python examples/certified_mlp.py [folder with MNIST/raw]
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from datamodules import FlatMNIST
from spectral_param import Bounded
from spectral_param.bounds import certified_radius, lipschitz_bound
from spectral_param.nn import SVDLinear


def main(root: str | Path = "data/mnist", epochs: int = 2, val_size: int = 5_000) -> tuple[float, float]:
    """Returns the share of right answers, and of those that no move by 0.3 in Euclidean norm can change."""
    torch.manual_seed(0)
    data = FlatMNIST(root, val_size=val_size)
    data.prepare_data()
    data.setup()

    def layer(inputs: int, outputs: int) -> nn.Module:
        return SVDLinear(inputs, outputs, reflectors=min(32, inputs, outputs), sigma=Bounded(1.0))

    model = nn.Sequential(layer(784, 128), nn.ReLU(), layer(128, 128), nn.ReLU(), layer(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(epochs):
        for images, labels in data.train_dataloader():
            # a constant of at most 1 gives small logits: the loss reads them scaled, so that it asks for wide margins
            loss = F.cross_entropy(20 * model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, Lipschitz bound {lipschitz_bound(model).item():.4f}")

    images, labels = map(torch.cat, zip(*data.test_dataloader(), strict=True))
    with torch.no_grad():
        radius = certified_radius(model(images), labels, lipschitz_bound(model))
    accuracy, certified = (radius > 0).float().mean().item(), (radius > 0.3).float().mean().item()
    print(f"right {accuracy:.1%}, certified at 0.3 {certified:.1%}, median radius {radius.median():.3f}")
    return accuracy, certified


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", default="data/mnist", help="folder with MNIST/raw")
    main(parser.parse_args().root)
