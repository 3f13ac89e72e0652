import copy
import warnings

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from spectral_param import (
    Band,
    Interval,
    adapter_state_dict,
    clip_singular_values_,
    load_adapter,
    load_plain_state_dict,
    parameter_groups,
    plain_state_dict,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
    renormalize_reflectors_,
    singular_values,
    svd_parametrizations,
    without_adapter,
)
from spectral_param.torch_state.shards import whole
from tests.versions import sharding_on_the_cpu


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
@pytest.mark.parametrize("wrap", [DistributedDataParallel, pytest.param(shard, marks=sharding_on_the_cpu)])
def test_ranks_agree_with_each_other_and_with_one_process(two_processes, wrap, assign):
    first, second = two_processes(train_wrapped, wrap, assign)
    alone = train(registered_model(), *data(), assign=assign)
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-5)


def train_by_groups(model, x, y):
    optimizer = torch.optim.Adam(parameter_groups(model, lr=0.05))
    for _ in range(40):
        optimizer.zero_grad()
        (model(x) - 20 * y).square().mean().backward()
        optimizer.step()
    return [whole(factor.detach()).clone() for _, held in svd_parametrizations(model) for factor in held.factors]


def train_by_groups_wrapped(rank, wrap):
    x, y = data()
    return train_by_groups(wrap(free_model()), x[rank::2], y[rank::2])


def free_model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    register_all(model)
    return model


@pytest.mark.parametrize("wrap", [DistributedDataParallel, pytest.param(shard, marks=sharding_on_the_cpu)])
def test_reflectors_grow_with_sigma_on_every_rank_as_in_one_process(two_processes, wrap):
    first, second = two_processes(train_by_groups_wrapped, wrap)
    alone = train_by_groups(free_model(), *data())
    start = [held.factors[0].norm() for _, held in svd_parametrizations(free_model())]
    assert alone[0].norm() > 1.9 * start[0]
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-3)


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


def message_of(call):
    """What it raises, in words."""
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"


def register_all_after_sharding(rank):
    report = register_all(shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))))
    return dict(report.taken), dict(report.passed_over)


def test_weights_that_are_spread_over_ranks_are_passed_over_with_the_reason(two_processes):
    for taken, passed_over in two_processes(register_all_after_sharding):
        assert not taken
        assert passed_over["0.weight"] == passed_over["1.weight"] == "sharded"


def plain_model():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def load_plain(model, state, how, folder):
    if how == "load_plain_state_dict":
        load_plain_state_dict(model, state)
    else:
        found = plain_state_dict(model)
        checkpoint.load(found, checkpoint_id=folder)
        load_plain_state_dict(model, found)


def load_plain_after_sharding(rank, how, folder):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    register_svd_parametrization(model[0])
    register_svd_parametrization(model[2])
    model, plain = shard(model), plain_model()
    before = [id(p) for p in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own, on the CPU
        load_plain(model, plain.state_dict(), how, folder)
    in_place = before == [id(p) for p in model.parameters()]
    x, _ = data()
    return model(x).detach(), in_place


@pytest.mark.parametrize("how", ["load_plain_state_dict", "dcp"])
def test_a_plain_checkpoint_is_loaded_into_a_sharded_model(two_processes, tmp_path, how):
    plain = plain_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own, without a group
        checkpoint.save(plain.state_dict(), checkpoint_id=tmp_path, no_dist=True)
    x, _ = data()
    for output, in_place in two_processes(load_plain_after_sharding, how, str(tmp_path)):
        torch.testing.assert_close(output, plain(x).detach(), rtol=1e-5, atol=1e-5)
        assert in_place


def load_plain_by_the_wrong_way(rank):
    model = shard(registered_model())
    before = [p.full_tensor() for p in model.parameters()]
    options = StateDictOptions(full_state_dict=True)
    message = message_of(lambda: set_model_state_dict(model, plain_model().state_dict(), options=options))
    factors = [i for i, (name, _) in enumerate(model.named_parameters()) if "parametrizations" in name]
    after = [p.full_tensor() for p in model.parameters()]
    return message, all(torch.equal(before[i], after[i]) for i in factors)


def test_a_plain_checkpoint_by_torchs_own_way_into_a_sharded_model_is_refused(two_processes):
    for message, unchanged in two_processes(load_plain_by_the_wrong_way):
        assert "0.weight: a plain weight does not reach factors" in message
        assert "load it before sharding, or by load_plain_state_dict" in message
        assert unchanged


def plain_weight_of_another_size(rank):
    model = shard(registered_model())
    before = [p.full_tensor() for p in model.parameters()]
    state = {**plain_model().state_dict(), "0.weight": torch.randn(3, 3)}
    message = message_of(lambda: load_plain_state_dict(model, state))
    name = next(i for i, (name, _) in enumerate(model.named_parameters()) if name.startswith("0.parametrizations"))
    return message, torch.equal(before[name], list(model.parameters())[name].full_tensor())


def test_a_plain_weight_that_does_not_fit_a_sharded_model_is_an_error(two_processes):
    for message, unchanged in two_processes(plain_weight_of_another_size):
        assert "size mismatch for 0.weight" in message
        assert unchanged


def split_over_ranks(rank):
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    outcomes = []
    for plan in (ColwiseParallel, RowwiseParallel):
        model = registered_model()
        x, _ = data()
        before = model(x)
        outcomes.append(message_of(lambda model=model, plan=plan: parallelize_module(model, mesh, {"2": plan()})))
        assert torch.equal(model(x), before)
    return outcomes


def test_tensor_parallelism_is_refused_with_the_remedy(two_processes):
    for messages in two_processes(split_over_ranks):
        for message in messages:
            assert "weight of Linear, in SVD form, cannot be split over ranks" in message
            assert "remove_svd_parametrization" in message


def remove_after_wrapping(rank):
    model = registered_model()
    x, _ = data()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    before = wrapped(x)
    messages = [message_of(lambda part=part: remove_svd_parametrization(part)) for part in (model[0], model, wrapped)]
    assert torch.equal(wrapped(x), before)
    del wrapped, before
    remove_svd_parametrization(model)
    return messages


def test_removing_after_wrapping_is_refused(two_processes):
    for messages in two_processes(remove_after_wrapping):
        for message in messages:
            assert "'weight' of Linear is wrapped in DistributedDataParallel" in message


def model_on_frozen_bases(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype).requires_grad_(False)
    register_svd_parametrization(model[0], base="frozen", reflectors=4, rank=3)
    register_svd_parametrization(model[2], base="frozen", reflectors=2, sigma=Interval(0.01, 3.0))
    return model


def train_on_frozen_bases(model, x, y):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(5):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    plain = model.module if isinstance(model, DistributedDataParallel) else model
    clip_singular_values_(plain, max=0.8)
    renormalize_reflectors_(plain)
    adapter = adapter_state_dict(plain)
    with without_adapter(plain):
        base = plain[0].weight.detach().clone()
    load_adapter(plain, adapter)
    weights = [plain[i].weight.detach().clone() for i in (0, 2)]
    return [base, *weights, singular_values(plain[2]).detach(), *adapter.values()]


def train_frozen_bases_wrapped(rank, wrap):
    x, y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return train_on_frozen_bases(wrap(model_on_frozen_bases()), x[rank::2], y[rank::2])


@pytest.mark.parametrize("wrap", [DistributedDataParallel, pytest.param(shard, marks=sharding_on_the_cpu)])
def test_frozen_bases_are_fine_tuned_over_ranks_as_in_one_process(two_processes, wrap):
    first, second = two_processes(train_frozen_bases_wrapped, wrap)
    alone = train_on_frozen_bases(model_on_frozen_bases(), *data())
    assert torch.equal(first[0], model_on_frozen_bases()[0].parametrizations.weight.original3)
    for a, b, c in zip(first, second, alone, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=0, atol=1e-5)


def shard_a_half_precision_base(rank):
    model = shard(model_on_frozen_bases(torch.bfloat16))
    x, y = (part.bfloat16() for part in data())
    (model(x) - y).square().mean().backward()
    held = [p for name, p in model.named_parameters() if name.endswith("weight.original3")]
    return [(str(p.dtype), p.to_local().numel(), p.numel()) for p in held]


def test_a_half_precision_base_is_spread_over_ranks_in_its_dtype(two_processes):
    for found in two_processes(shard_a_half_precision_base):
        assert found == [("torch.bfloat16", 24, 48), ("torch.bfloat16", 16, 32)]
