import math

import pytest
import torch
import torch.nn.functional as F

from datamodules import CopyMemory


def small(**kwargs) -> CopyMemory:
    data = CopyMemory(**{"lag": 5, "train_size": 40, "batch_size": 40, **kwargs})
    data.setup("fit")
    return data


@pytest.mark.parametrize("lag", [1, 5, 100])
def test_samples_are_those_of_the_task(lag):
    inputs, targets = next(iter(small(lag=lag).train_dataloader()))
    assert inputs.shape == (40, lag + 20, 10)
    assert targets.shape == (40, lag + 20)
    assert (inputs.sum(-1) == 1).all()
    symbols = inputs.argmax(-1)
    for sequence, target in zip(symbols.tolist(), targets.tolist(), strict=True):
        copied = sequence[:10]
        assert max(copied) < 8
        assert sequence[10:] == [8] * (lag - 1) + [9] + [8] * 10
        assert target == [8] * (lag + 10) + copied
    assert set(symbols[:, :10].flatten().tolist()) == set(range(8))


@pytest.mark.parametrize("lag", [1, 100])
def test_baseline_is_the_loss_without_memory(lag):
    data = small(lag=lag)
    _, targets = next(iter(data.train_dataloader()))
    answer = torch.full((lag + 20, 9), -math.inf)
    answer[: lag + 10, 8] = 0.0
    answer[lag + 10 :, :8] = 0.0
    loss = F.cross_entropy(answer.expand(40, -1, -1).flatten(0, 1), targets.flatten())
    assert loss.item() == pytest.approx(data.baseline_loss)


def test_new_sequences_every_epoch_the_same_with_workers():
    alone, workers = (small(num_workers=n, batch_size=8).train_dataloader() for n in (0, 2))
    seen = []
    for epoch in range(2):
        batches = []
        for loader in (alone, workers):
            loader.sampler.set_epoch(epoch)
            batches.append(torch.cat([targets for _, targets in loader]))
        assert torch.equal(*batches)
        seen.append(batches[0])
    assert len(torch.cat(seen).unique(dim=0)) == 80


def test_bad_arguments():
    with pytest.raises(ValueError, match="lag: expected at least 1, got 0"):
        CopyMemory(lag=0)
    with pytest.raises(ValueError, match="seed: expected at least 0, got -1"):
        CopyMemory(seed=-1)
