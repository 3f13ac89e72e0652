"""A trained transformer on frozen bases: few numbers learn the next task, σ are known, the adapter is a file.

Run: python examples/finetune_transformer.py
"""

import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param import (
    load_adapter,
    parameter_groups,
    register_all,
    remove_svd_parametrization,
    save_adapter,
    singular_values,
    without_adapter,
)

WORDS, WIDTH, LENGTH = 32, 64, 16
FROZEN = {"where": (nn.Linear, nn.MultiheadAttention), "base": "frozen", "reflectors": 4, "rank": 16}


class Transformer(nn.Module):
    """Says the next word: (batch, steps) → (batch, steps, words)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        """Each word from those before it."""
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.words(x), mask=mask, is_causal=True))


def loss_of(model: nn.Module, stride: int) -> Tensor:
    """Of counting on in steps of ``stride``."""
    sequence = (torch.randint(WORDS, (32, 1)) + stride * torch.arange(LENGTH + 1)) % WORDS
    return F.cross_entropy(model(sequence[:, :-1]).flatten(0, 1), sequence[:, 1:].flatten())


def fit(model: nn.Module, groups: list[dict], stride: int, rate: float, steps: int) -> None:
    """Trains by AdamW."""
    optimizer = torch.optim.AdamW(groups, lr=rate)
    for _ in range(steps):
        loss_of(model, stride).backward()
        optimizer.step()
        optimizer.zero_grad()


def main(steps: int = 150) -> tuple[float, float, float]:
    """Returns the loss of the new task before and after, and of the old one with the adapter off."""
    torch.manual_seed(0)
    model = Transformer()
    fit(model, parameter_groups(model), stride=3, rate=3e-3, steps=steps)

    model.requires_grad_(False)  # biases, norms and the embedding stay as they are too
    plain = copy.deepcopy(model)
    print(register_all(model, **FROZEN))
    before, up = loss_of(model, stride=5).item(), model.layers.layers[0].linear1
    first = singular_values(up)[0].item()
    fit(model, parameter_groups(model, sigma_lr=3e-2), stride=5, rate=1e-2, steps=steps)
    after = loss_of(model, stride=5).item()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in plain.parameters())
    print(f"new task: {before:.3f} before, {after:.3f} after training {trained:,} numbers beside {total:,}")
    print(f"spectral norm of layers.0.linear1: {first:.3f} before, {singular_values(up)[0]:.3f} after")

    with without_adapter(model):
        old = loss_of(model, stride=3).item()
    print(f"old task with the adapter off: {old:.3f}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter.safetensors"
        save_adapter(model, path)
        register_all(plain, **FROZEN)
        load_adapter(plain, path)
        print(f"{path.stat().st_size:,} bytes of adapter, loaded: {loss_of(plain, stride=5):.3f}")
    remove_svd_parametrization(model)  # merged: plain weights, to be saved or exported
    print(f"merged: {loss_of(model, stride=5):.3f}")
    return before, after, old


if __name__ == "__main__":
    main()
