"""One layer of a torchvision ResNet-18 in SVD form: nothing changes, and then its spectral norm is held.

Run: python examples/wrap_resnet.py
"""

import torch
from torchvision.models import resnet18

from spectral_param import (
    clip_singular_values_,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    spectral_norm,
)


def main(size: int = 96, steps: int = 3) -> float:
    """Trains a few steps on noise and returns the spectral norm that the wrapped layer ends with."""
    torch.manual_seed(0)
    model = resnet18(num_classes=10).eval()
    layer = model.layer3[0].downsample[0]  # a 1×1 convolution, 256×128
    images, labels = torch.randn(8, 3, size, size), torch.randint(10, (8,))
    before = model(images)

    register_svd_parametrization(layer)  # exact: all reflectors, σ without limits
    print(f"output moved by {(model(images) - before).abs().max():.1e}")
    print(f"singular values from {singular_values(layer)[-1]:.2f} to {singular_values(layer)[0]:.2f}")

    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # built after registration: it holds the factors
    for step in range(steps):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clip_singular_values_(layer, max=0.9)
        print(f"step {step}: loss {loss.item():.3f}, spectral norm {spectral_norm(layer).item():.4f}")

    remove_svd_parametrization(layer)  # a plain ResNet again, to be saved or exported
    return spectral_norm(layer).item()


if __name__ == "__main__":
    main()
