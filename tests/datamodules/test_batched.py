from types import SimpleNamespace

import pytest
import torch

from datamodules import AddingProblem, PixelMNIST


def targets_on(rank: int, ranks: int, make, loader: str) -> list[torch.Tensor]:
    data = make()
    share = {"num_replicas": ranks, "rank": rank}
    data.trainer = SimpleNamespace(distributed_sampler_kwargs=share)
    data.setup()
    return [targets.flatten() for _, targets in getattr(data, f"{loader}_dataloader")()]


@pytest.fixture(params=["adding", "mnist"])
def make(request, small_mnist):
    if request.param == "adding":
        return lambda: AddingProblem(5, train_size=80, val_size=21, test_size=41, batch_size=8)
    return lambda: PixelMNIST(small_mnist, seq_len=28, val_size=20, batch_size=8, download=False)


@pytest.mark.parametrize("loader", ["train", "val", "test", "predict"])
def test_two_ranks_see_each_sample_once(make, loader):
    alone = torch.cat(targets_on(0, 1, make, loader))
    ranks = [torch.cat(targets_on(rank, 2, make, loader)) for rank in range(2)]
    assert abs(len(ranks[0]) - len(ranks[1])) <= 1
    assert torch.equal(torch.cat(ranks).sort().values, alone.sort().values)


def test_ranks_train_on_equally_many_batches():
    def make():
        return AddingProblem(5, train_size=17, batch_size=8)

    batches = [targets_on(rank, 2, make, "train") for rank in range(2)]
    assert [len(targets) for targets in batches[0]] == [len(targets) for targets in batches[1]]


def test_single_samples(small_mnist):
    data = PixelMNIST(small_mnist, seq_len=392, val_size=20)
    data.setup("test")
    pixels, label = data.test_set[3]
    assert pixels.shape == (392, 2)
    assert label.shape == ()
