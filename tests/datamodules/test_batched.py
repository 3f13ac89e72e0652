from types import SimpleNamespace

import pytest
import torch

from datamodules import AddingProblem, CopyMemory, FlatMNIST, MultiLabel, PixelMNIST, UCRArchive
from tests.small_data import write_multilabel, write_ucr


def targets_on(rank: int, ranks: int, make, loader: str) -> list[torch.Tensor]:
    data = make()
    share = {"num_replicas": ranks, "rank": rank}
    data.trainer = SimpleNamespace(distributed_sampler_kwargs=share)
    data.setup()
    return [
        targets.flatten(1) if targets.dim() > 1 else targets[:, None]
        for _, targets in getattr(data, f"{loader}_dataloader")()
    ]


@pytest.fixture(params=["adding", "copy", "pixels", "flat", "ucr", "multilabel"])
def make(request, small_mnist, tmp_path):
    sizes = {"train_size": 80, "val_size": 21, "test_size": 41}
    makers = {
        "adding": lambda: AddingProblem(5, **sizes, batch_size=8),
        "copy": lambda: CopyMemory(5, **sizes, batch_size=8),
        "pixels": lambda: PixelMNIST(small_mnist, seq_len=28, val_size=20, batch_size=8, download=False),
        "flat": lambda: FlatMNIST(small_mnist, val_size=20, batch_size=8, download=False),
        "ucr": lambda: UCRArchive("CBF", write_ucr(tmp_path), batch_size=4),
        "multilabel": lambda: MultiLabel("bibtex", write_multilabel(tmp_path), batch_size=4),
    }
    return makers[request.param]


@pytest.mark.parametrize("loader", ["train", "val", "test", "predict"])
def test_two_ranks_see_each_sample_once(make, loader):
    alone = torch.cat(targets_on(0, 1, make, loader))
    ranks = [torch.cat(targets_on(rank, 2, make, loader)) for rank in range(2)]
    assert abs(len(ranks[0]) - len(ranks[1])) <= 1
    assert sorted(torch.cat(ranks).tolist()) == sorted(alone.tolist())


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
