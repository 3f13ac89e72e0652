import copy
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from spectral_param import (
    Band,
    clip_singular_values_,
    register_svd_parametrization,
    renormalize_reflectors_,
    singular_values,
    svd_parametrizations,
)


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
    """Five steps with a clip after each; answers weights, σ and singular values as read outside of a forward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    for step in range(5):
        if assign and step == 2:
            plain[2].weight = torch.eye(4, 8)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        clip_singular_values_(plain, min=0.2, max=1.5)
    renormalize_reflectors_(plain)
    weights = [plain[i].weight.detach().clone() for i in (0, 2)]
    sigma = [p.sigma.detach().clone() for _, p in svd_parametrizations(plain)]
    return [*weights, *sigma, singular_values(plain[2]).detach()]


def train_wrapped(rank, wrap, assign):
    x, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return train(wrap(registered_model()), x[rank::2], y[rank::2], assign=assign)


def shard(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own, on the CPU
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("wrap", [DistributedDataParallel, shard])
def test_ranks_agree_with_each_other_and_with_one_process(two_processes, wrap, assign):
    first, second = two_processes(train_wrapped, wrap, assign)
    alone = train(registered_model(), *data(), assign=assign)
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-5)


def whole_state(rank):
    model = shard(registered_model())
    x, _ = data()
    model(x).sum().backward()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options)


def test_a_checkpoint_of_two_ranks_loads_on_one(two_processes):
    state, _ = two_processes(whole_state)
    model = registered_model()
    before = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model.load_state_dict(state)
    x, _ = data()
    torch.testing.assert_close(model(x), before(x))


def register_after_wrapping(rank):
    messages = []
    for wrap in (DistributedDataParallel, shard):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        wrapped = wrap(model)
        try:
            register_svd_parametrization(model[0])
        except ValueError as error:
            messages.append(str(error))
        del wrapped
    return messages


def test_registering_after_wrapping_is_refused(two_processes):
    for messages in two_processes(register_after_wrapping):
        assert "DistributedDataParallel" in messages[0]
        assert "register before sharding" in messages[1]
