"""A training loop without Lightning: a Spectral-RNN on the adding problem.

Run: python examples/plain_loop.py
"""

import torch
from torch import nn
from torch.nn import functional as F

from datamodules import AddingProblem
from spectral_param import Band, parameter_groups, renormalize_reflectors_, spectral_margin
from spectral_param.nn import SpectralRNN


def main(length: int = 50, steps: int = 600) -> float:
    """Trains and returns the mean squared error of the last 50 batches; a constant answer has 0.167."""
    torch.manual_seed(0)
    rnn = SpectralRNN(2, 128, nonlinearity="relu", batch_first=True, reflectors=16, sigma=Band(0.01))
    head = nn.Linear(128, 1)
    model = nn.ModuleDict({"rnn": rnn, "head": head})
    # σ moves slowly in a narrow band: it may have a learning rate of its own
    optimizer = torch.optim.Adam(parameter_groups(model, sigma_lr=1e-2), lr=1e-3)

    data = AddingProblem(length)
    data.setup("fit")
    loader = data.train_dataloader()
    errors: list[float] = []
    while len(errors) < steps:
        for inputs, targets in loader:
            _, state = rnn(inputs)
            loss = F.mse_loss(head(state[-1]), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            renormalize_reflectors_(model)  # W stays as it is, the reflectors have length 1 again
            errors.append(loss.item())
            if len(errors) % 100 == 0:
                margin = spectral_margin(rnn, "weight_hh_l0").item()
                print(f"step {len(errors)}: error {sum(errors[-50:]) / 50:.4f}, max|σ - 1| {margin:.4f}")
            if len(errors) == steps:
                break
        loader.sampler.set_epoch(len(errors))  # new sequences
    return sum(errors[-50:]) / len(errors[-50:])


if __name__ == "__main__":
    main()
