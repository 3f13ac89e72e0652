import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spectral_param import Band, clip_singular_values_, register_svd_parametrization, svd_parametrizations


def registered_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    register_svd_parametrization(model[0], reflectors=3, sigma=Band(0.1), init="orthogonal")
    register_svd_parametrization(model[2])
    return model


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 6, generator=generator), torch.randn(16, 4, generator=generator)


def train(model, x, y, *, assign=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    for step in range(5):
        if assign and step == 2:
            plain[2].weight = torch.eye(4, 8)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        clip_singular_values_(plain, min=0.2, max=1.5)
    return [plain[i].weight.detach().clone() for i in (0, 2)] + [
        p.sigma.detach().clone() for _, p in svd_parametrizations(plain)
    ]


def train_on_a_rank(rank, assign):
    x, y = data()
    model = DistributedDataParallel(registered_model())
    return train(model, x[rank::2], y[rank::2], assign=assign)


def test_ranks_agree_with_each_other_and_with_one_process(two_processes):
    for assign in (False, True):
        first, second = two_processes(train_on_a_rank, assign)
        alone = train(registered_model(), *data(), assign=assign)
        for a, b, c in zip(first, second, alone, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=0, atol=1e-5)
