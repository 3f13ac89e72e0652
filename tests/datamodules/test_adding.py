import pytest
import torch
from torch.utils.data import DataLoader

from datamodules import AddingProblem


def epoch_of(loader: DataLoader, epoch: int) -> torch.Tensor:
    loader.sampler.set_epoch(epoch)
    return torch.cat([inputs for inputs, _ in loader])


def small(**kwargs) -> AddingProblem:
    data = AddingProblem(**{"length": 7, "train_size": 40, "batch_size": 16, **kwargs})
    data.setup("fit")
    return data


@pytest.mark.parametrize("length", [2, 7, 100])
def test_samples_are_those_of_the_task(length):
    inputs, targets = next(iter(small(length=length, batch_size=40).train_dataloader()))
    assert inputs.shape == (40, length, 2)
    assert targets.shape == (40, 1)
    assert inputs.dtype == targets.dtype == torch.float32
    for sequence, target in zip(inputs, targets, strict=True):
        values, markers = sequence.T
        first, second = markers.nonzero().flatten().tolist()
        assert first < length // 2 <= second
        assert markers.sum() == 2
        assert 0 <= values.min() <= values.max() < 1
        assert target.item() == pytest.approx(values[first].item() + values[second].item())


def test_markers_fall_on_every_step():
    inputs, _ = next(iter(small(train_size=500, batch_size=500).train_dataloader()))
    assert (inputs[..., 1].sum(0) > 0).all()


def test_baseline_is_the_error_of_the_constant_answer():
    data = AddingProblem(test_size=20_000, batch_size=20_000, length=4)
    data.setup("test")
    _, targets = next(iter(data.test_dataloader()))
    assert (targets - 1).square().mean().item() == pytest.approx(data.baseline_mse, rel=0.02)
    assert data.baseline_mse == pytest.approx(0.167, abs=1e-3)


def test_training_sequences_are_new_in_every_epoch():
    loader = small().train_dataloader()
    epochs = torch.cat([epoch_of(loader, epoch) for epoch in range(3)])
    assert len(epochs.unique(dim=0)) == 3 * 40


def test_validation_and_test_sequences_stay_and_differ():
    data = small(val_size=40, test_size=40)
    val, test = data.val_dataloader(), data.test_dataloader()
    torch.testing.assert_close(epoch_of(val, 0), epoch_of(val, 1), rtol=0, atol=0)
    train, val, test = epoch_of(data.train_dataloader(), 0), epoch_of(val, 0), epoch_of(test, 0)
    assert len(torch.cat([train, val, test]).unique(dim=0)) == 3 * 40


def test_seed_decides_the_sequences():
    first, again, other = (small(seed=seed).train_dataloader() for seed in (3, 3, 4))
    assert torch.equal(epoch_of(first, 5), epoch_of(again, 5))
    assert not torch.equal(epoch_of(first, 5), epoch_of(other, 5))


def test_workers_change_no_batch():
    alone, workers = (small(num_workers=n).train_dataloader() for n in (0, 2))
    for epoch in range(2):
        assert torch.equal(epoch_of(alone, epoch), epoch_of(workers, epoch))


def test_global_seed_does_not_matter():
    torch.manual_seed(1)
    first = epoch_of(small().train_dataloader(), 0)
    torch.manual_seed(2)
    assert torch.equal(first, epoch_of(small().train_dataloader(), 0))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"length: expected at least 2, .* got 1"):
        AddingProblem(length=1)
    with pytest.raises(ValueError, match="seed: expected at least 0, got -1"):
        AddingProblem(seed=-1)
