import math

import pytest
import torch
import torch.nn.functional as F
from lightning import Trainer

from datamodules import CopyMemory
from lightning_modules import SequenceCopier


def test_metrics_are_of_the_symbols_given_back(tmp_path):
    data = CopyMemory(lag=3, train_size=8, val_size=8, test_size=12, batch_size=8)
    model = SequenceCopier(10, 9, "lstm", hidden_size=8)
    run = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    (logged,) = run.test(model, data, verbose=False)
    answers = torch.cat(run.predict(model, data))
    inputs, targets = (torch.cat(parts) for parts in zip(*data.test_dataloader(), strict=True))
    assert answers.shape == (12, 10)
    assert logged["test_accuracy"] == pytest.approx((answers == targets[:, -10:]).float().mean().item())
    loss = F.cross_entropy(model.eval()(inputs).flatten(0, 1), targets.flatten())
    assert logged["test_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert logged["baseline_loss"] == pytest.approx(10 * math.log(8) / 23)


def test_answers_do_not_look_ahead():
    model = SequenceCopier(10, 9, hidden_size=16)
    inputs = torch.rand(1, 12, 10, requires_grad=True)
    model(inputs)[0, 6].sum().backward()
    assert (inputs.grad[0, :7] != 0).any(1).all()
    assert (inputs.grad[0, 7:] == 0).all()
