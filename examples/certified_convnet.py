"""A convolutional network on MNIST whose Lipschitz constant is 1, and how far each image may be moved at least.

Run: python examples/certified_convnet.py [folder with MNIST/raw]
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from datamodules import FlatMNIST
from spectral_param import Fixed, parameter_groups
from spectral_param.bounds import certified_hinge_loss, certified_radius, lipschitz_bound
from spectral_param.nn import MaxMin, SVDConv2d, SVDLinear


def main(
    root: str | Path = "data/mnist", epochs: int = 2, val_size: int = 5_000, width: int = 16
) -> tuple[float, float]:
    """Returns the share of right answers, and of those that no move by 1 in Euclidean norm can change."""
    torch.manual_seed(0)
    data = FlatMNIST(root, val_size=val_size)
    data.prepare_data()
    data.setup()

    # all σ of every operator are 1, and sorting keeps lengths: no gradient shrinks on its way
    orthogonal = {"sigma": Fixed()}
    model = nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(SVDConv2d(1, width, 6, stride=2, **orthogonal), MaxMin(), SVDConv2d(width, width, 3, **orthogonal), MaxMin()),
        *(SVDConv2d(width, 2 * width, 6, stride=2, **orthogonal), MaxMin()),
        nn.Flatten(),
        SVDLinear(2 * width * 49, 10, **orthogonal),
    )
    optimizer = torch.optim.Adam(parameter_groups(model, lr=3e-3))
    for epoch in range(epochs):
        for images, labels in data.train_dataloader():
            loss = certified_hinge_loss(model(images), labels, radius=2.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, Lipschitz bound {lipschitz_bound(model).item():.5f}")

    bound = lipschitz_bound(model).item()
    with torch.no_grad():
        batches = data.test_dataloader()
        radius = torch.cat([certified_radius(model(images), labels, bound) for images, labels in batches])
    accuracy, certified = (radius > 0).float().mean().item(), (radius > 1).float().mean().item()
    print(f"right {accuracy:.1%}, certified at 1 {certified:.1%}, median radius {radius.median():.3f}")
    return accuracy, certified


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", default="data/mnist", help="folder with MNIST/raw")
    main(parser.parse_args().root)
