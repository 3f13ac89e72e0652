"""Callbacks, ranks and shards meet a convolution as they meet any registered weight."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spectral_param import (
    Band,
    clip_singular_values_,
    renormalize_reflectors_,
    singular_values,
    svd_parametrizations,
)
from spectral_param.callbacks import SpectralClip, SpectralMonitor
from spectral_param.nn import MaxMin, SVDConv2d
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors
from tests.versions import sharding_on_the_cpu


class Images(Regression):
    """Vectors of six read as images of two by three, σ driven far."""

    def __init__(self) -> None:
        super().__init__(lr=0.3)
        self.first = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), SVDConv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(4))
        self.first(torch.zeros(1, 6))


def test_clip_and_monitor_take_it(tmp_path):
    model = Images()
    trainer(tmp_path, SpectralMonitor(every_n_steps=1), SpectralClip(0.5, 1.1), max_epochs=2).fit(model, vectors())
    sigma = singular_values(model.first[1])
    assert 0.5 - 1e-6 <= sigma.min() <= sigma.max() <= 1.1 + 1e-6


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(SVDConv2d(2, 4, 3, sigma=Band(0.3)), MaxMin(), SVDConv2d(4, 8, 6, 2))


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    for _ in range(4):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()
        clip_singular_values_(plain, min=0.2, max=1.2)
    renormalize_reflectors_(plain)
    return [plain[i].weight.detach().clone() for i in (0, 2)] + [
        p.sigma.detach().clone() for _, p in svd_parametrizations(plain)
    ]


def images():
    return torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(1))


def train_wrapped(rank, wrap):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own, on the CPU
        return train(wrap(small_model()), images()[rank::2])


def shard(model):
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, pytest.param(shard, marks=sharding_on_the_cpu)])
def test_ranks_agree_with_each_other_and_with_one_process(two_processes, wrap):
    first, second = two_processes(train_wrapped, wrap)
    alone = train(copy.deepcopy(small_model()), images())
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-5)
