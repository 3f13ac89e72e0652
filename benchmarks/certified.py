"""``python -m benchmarks.certified FOLDER``: certified networks on MNIST, of our layers and of other libraries'.

FOLDER holds ``MNIST/raw``. All have the same architecture, loss, optimizer, batches and number of epochs; learning
rates are chosen from the same few by certified accuracy on validation with the first seed. Libraries that are not
installed (orthogonium, deel-torchlip) are left out. Beside the constant that a library promises, by which certificates
divide, stands the product of its layers' norms as power iteration finds them, and the greatest norm of the network's
Jacobian at test images, from below. Last the time of a training step of one 3×3 convolution, forward and backward.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.race import Race
from datamodules import FlatMNIST
from spectral_param import Fixed, parameter_groups
from spectral_param.bounds import certified_hinge_loss, certified_radius
from spectral_param.nn import MaxMin, SVDConv2d, SVDLinear

RADII = (0.5, 1.0, 1.58)


class Layers(NamedTuple):
    """The layers of one library: from channels, kernel size and stride, and from features."""

    convolution: Callable[[int, int, int, int], nn.Module]
    linear: Callable[[int, int], nn.Module]


def libraries() -> dict[str, Layers]:
    """Those that are installed; plain layers, which promise nothing, first."""

    def around(size: int, stride: int) -> dict[str, Any]:
        return {"kernel_size": size, "stride": stride, "padding": (size - stride) // 2, "padding_mode": "circular"}

    found = {
        "plain": Layers(lambda p, q, size, stride: nn.Conv2d(p, q, **around(size, stride)), nn.Linear),
        "ours": Layers(
            lambda p, q, size, stride: SVDConv2d(p, q, size, stride, sigma=Fixed()),
            lambda p, q: SVDLinear(p, q, sigma=Fixed()),
        ),
    }
    if find_spec("orthogonium"):
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d
        from orthogonium.layers.linear.ortho_linear import OrthoLinear

        found["orthogonium"] = Layers(lambda p, q, *sizes: AdaptiveOrthoConv2d(p, q, **around(*sizes)), OrthoLinear)
    if find_spec("deel"):
        from deel import torchlip

        found["deel-torchlip"] = Layers(
            lambda p, q, *sizes: torchlip.SpectralConv2d(p, q, **around(*sizes)), torchlip.SpectralLinear
        )
    return found


def network(layers: Layers, width: int) -> nn.Sequential:
    """Four convolutions, two of them with stride 2, and a linear layer, with MaxMin between."""
    conv = layers.convolution
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        *(conv(1, width, 6, 2), MaxMin(), conv(width, width, 3, 1), MaxMin()),
        *(conv(width, 2 * width, 6, 2), MaxMin(), conv(2 * width, 2 * width, 3, 1), MaxMin()),
        nn.Flatten(),
        layers.linear(2 * width * 49, 10),
    )


class Trained(NamedTuple):
    """A network after training, and the seconds of processor time of each epoch."""

    model: nn.Sequential
    seconds: list[float]


def train(layers: Layers, data: FlatMNIST, lr: float, seed: int, options: argparse.Namespace) -> Trained:
    """Trains by Adam, at a rate that falls to zero by a cosine, with the hinge loss of ``options.radius``."""
    torch.manual_seed(seed)
    model = network(layers, options.width)
    optimizer = torch.optim.Adam(parameter_groups(model, lr=lr))  # for what is not ours the rate as it is
    steps = options.epochs * len(data.train_dataloader())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    seconds = []
    for _ in range(options.epochs):
        start = time.thread_time()
        for images, labels in data.train_dataloader():
            loss = certified_hinge_loss(model(images), labels, options.radius)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        seconds.append(time.thread_time() - start)
    return Trained(model.eval(), seconds)


@torch.no_grad()
def radii(model: nn.Module, batches: Iterable[Any], constant: float) -> Tensor:
    """The certified radius of each image."""
    return torch.cat([certified_radius(model(images), labels, constant) for images, labels in batches])


def norm(layer: nn.Module, input: Tensor, iterations: int = 300) -> float:
    """The norm of an affine layer on inputs of this shape, by power iteration."""
    x = torch.randn_like(input[:1])
    zero = layer(torch.zeros_like(x)).detach()
    for _ in range(iterations):
        x = (x / x.norm()).requires_grad_()
        y = layer(x) - zero
        [x] = torch.autograd.grad(y, x, y.detach())
    return x.norm().sqrt().item()


def constants(model: nn.Sequential, images: Tensor) -> tuple[float, float]:
    """The product of the layers' norms, and the greatest norm of the Jacobian at images."""
    x, product = images, 1.0
    for layer in model:
        if any(True for _ in layer.parameters()):
            product *= norm(layer, x)
        x = layer(x).detach()
    inputs = images.clone().requires_grad_()
    logits = model(inputs)
    rows = [torch.autograd.grad(logits[:, i].sum(), inputs, retain_graph=True)[0] for i in range(10)]
    return product, torch.linalg.matrix_norm(torch.stack(rows, 1).flatten(2), 2).max().item()


def measure(name: str, layers: Layers, data: FlatMNIST, options: argparse.Namespace) -> str:
    """A row of the table: means over seeds."""
    images = torch.cat([batch for batch, _ in data.test_dataloader()])[:100]
    first = {lr: train(layers, data, lr, 0, options) for lr in options.lr}
    scores = {}
    for lr, one in first.items():
        found = radii(one.model, islice(data.val_dataloader(), 40), 1.0)
        scores[lr] = (found > 1.0).float().mean().item()
    lr = max(scores, key=lambda lr: scores[lr])
    runs = [first[lr], *(train(layers, data, lr, seed, options) for seed in range(1, options.seeds))]
    seconds = min(min(run.seconds) for run in (*first.values(), *runs))
    shares = []
    for run in runs:
        found = radii(run.model, data.test_dataloader(), 1.0)
        if name == "plain":
            found = found / constants(run.model, images)[0]
        shares.append([(found > radius).float().mean().item() for radius in (0.0, *RADII)])
    means = [f"{statistics.mean(column):.1%}" for column in zip(*shares, strict=True)]
    products, jacobians = zip(*(constants(run.model, images) for run in runs), strict=True)
    promised = "none" if name == "plain" else "1"
    cells = [name, f"{lr:g}", *means, f"{seconds:.1f}", promised, f"{max(products):.6g}", f"{max(jacobians):.4g}"]
    return _row(cells)


def step_times(seconds: float) -> Iterator[str]:
    """Rows of the time of a training step of one convolution, over that of a plain one: the least of many each."""
    found = libraries()
    yield _row(["channels, image, batch", "plain, ms", *list(found)[1:]])
    yield "|" + " --- |" * (1 + len(found))
    for channels, side, batch in ((16, 14, 64), (64, 32, 16), (128, 16, 32)):
        x = torch.randn(batch, channels, side, side)
        steps = {name: _step(layers.convolution(channels, channels, 3, 1), x) for name, layers in found.items()}
        times = {name: min(taken) for name, taken in Race(steps, seconds).times.items()}
        over = [f"{times[name] / times['plain']:.2f}" for name in list(found)[1:]]
        yield _row([f"{channels}, {side}×{side}, {batch}", f"{1e3 * times['plain']:.1f}", *over])


def _step(layer: nn.Module, x: Tensor) -> Callable[[], None]:
    def step() -> None:
        layer.zero_grad()
        layer(x).square().mean().backward()

    return step


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.certified", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-3, 3e-3, 1e-2, 3e-2])
    parser.add_argument("--radius", type=float, default=2.0, help="of the hinge loss")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the steps of each size of convolution")
    for name, default in (("val-size", 50_000), ("epochs", 5), ("seeds", 2), ("width", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = FlatMNIST(options.folder, val_size=options.val_size, download=False)
    data.prepare_data()
    data.setup()
    titles = ["layers", "learning rate", "clean", *(f"at {radius:g}" for radius in RADII), "s an epoch"]
    titles += ["promised L", "product of norms", "Jacobian, greatest"]
    print(_row(titles) + "\n|" + " --- |" * len(titles), flush=True)
    for name, layers in libraries().items():
        print(measure(name, layers, data, options), flush=True)
    print()
    for line in step_times(options.seconds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
