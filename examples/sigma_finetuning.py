"""Fine-tuning the singular values alone: U and V of every layer stay, a few hundred numbers learn a new task.

Run: python examples/sigma_finetuning.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param import parameter_groups, register_all


def task(weight: Tensor, size: int = 2_000) -> tuple[Tensor, Tensor]:
    """Inputs, and what a fixed layer makes of them."""
    inputs = torch.randn(size, weight.shape[1])
    return inputs, torch.tanh(inputs @ weight.mT)


def fit(model: nn.Module, groups: list[dict], data: tuple[Tensor, Tensor], steps: int) -> float:
    """Trains by Adam and returns the last loss."""
    inputs, targets = data
    optimizer = torch.optim.Adam(groups, lr=1e-2)
    for _ in range(steps):
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def main(steps: int = 300) -> tuple[float, float]:
    """Returns the loss of the new task before and after fine-tuning."""
    torch.manual_seed(0)
    u, sigma, vh = torch.linalg.svd(torch.randn(16, 32) / 4, full_matrices=False)
    old, new = u @ torch.diag(sigma) @ vh, u @ torch.diag(sigma.flip(0)) @ vh  # the same directions, other gains

    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    print(f"old task, trained: {fit(model, parameter_groups(model), task(old), steps):.4f}")

    print(register_all(model, train="sigma"))
    data = task(new)
    before = F.mse_loss(model(data[0]), data[1]).item()
    trained = sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and "bias" not in name)
    total = 64 * 32 + 16 * 64
    after = fit(model, parameter_groups(model), data, steps)
    print(f"new task: {before:.4f} before, {after:.4f} after training {trained} σ in the place of {total} weights")
    return before, after


if __name__ == "__main__":
    main()
