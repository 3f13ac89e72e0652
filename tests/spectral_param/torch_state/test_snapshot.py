"""Whoever writes to a tensor, by whatever way, is seen; who only reads costs nothing."""

import copy
import ctypes
import io

import numpy as np
import pytest
import torch
from torch import nn

from spectral_param.torch_state.private import address
from spectral_param.torch_state.snapshot import Snapshot, lazy_copy
from tests.versions import writable_dlpack

WRITERS = {
    "in place": lambda p: p.detach().mul_(2),
    "data": lambda p: p.data.copy_(torch.zeros(100)),
    "one number of data": lambda p: p.data.__setitem__(3, 1.0),
    "another data": lambda p: setattr(p, "data", torch.zeros(100)),
    "a clamp, as of a critic": lambda p: p.data.clamp_(-0.01, 0.01),
    "a mask": lambda p: p.data.mul_(torch.arange(100) % 2),
    "a target network": lambda p: p.data.copy_(0.9 * p.data + 0.1 * torch.ones(100)),
    "an average": lambda p: p.data.lerp_(torch.ones(100), 0.1),
    "a list of data": lambda p: torch._foreach_add_([p.data], 1.0),
    "out": lambda p: torch.add(torch.ones(100), 1, out=p.data),
    "a view": lambda p: p.data.view(10, 10).T[1:].normal_(),
    "bits": lambda p: p.data.view(torch.int32).bitwise_xor_(1),
    "vector_to_parameters": lambda p: nn.utils.vector_to_parameters(torch.zeros(100), [p]),
    "NumPy": lambda p: p.detach().numpy().fill(3),
    "DLPack": lambda p: np.from_dlpack(p.detach()).fill(3),
    "its storage": lambda p: p.untyped_storage().fill_(1),
    "a pointer": lambda p: ctypes.memset(p.data_ptr(), 0, 40),
    "init": lambda p: nn.init.orthogonal_(p.data.view(10, 10)),
}
MARKS = {"DLPack": writable_dlpack}
READERS = {
    "a product": lambda p: p.view(10, 10) @ torch.ones(10),
    "a sum": lambda p: p.sum(),
    "a norm": lambda p: torch.linalg.svdvals(p.detach().view(10, 10)),
    "a copy": copy.deepcopy,
    "its bits": lambda p: p.detach().view(torch.int32).sum(),
    "a comparison": lambda p: torch.equal(p, p.clone()),
    "a gradient": lambda p: p.square().sum().backward(),
}


def in_inference_mode(values):
    with torch.inference_mode():
        return values + 0


def shared_by_processes(values):
    return values.share_memory_()


def of_numpy(values):
    return torch.from_numpy(values.numpy())


def of_a_file(values, tmp_path):
    torch.save(values, tmp_path / "values.pt")
    return torch.load(tmp_path / "values.pt", mmap=True)


MEMORIES = (torch.clone, in_inference_mode, shared_by_processes, of_numpy, of_a_file)


def tensor(memory, tmp_path):
    values = torch.randn(100)
    return memory(values, tmp_path) if memory is of_a_file else memory(values)


@pytest.mark.parametrize("write", [pytest.param(f, id=n, marks=MARKS.get(n, ())) for n, f in WRITERS.items()])
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_writer_is_seen(write, memory, tmp_path):
    p = tensor(memory, tmp_path)
    p = p if p.is_inference() else nn.Parameter(p)
    snapshot = Snapshot([p])
    assert snapshot.is_still([p])
    with torch.inference_mode(p.is_inference()), torch.no_grad():
        write(p)
    assert not snapshot.is_still([p])


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_reader_is_taken_for_no_writer(read):
    p = nn.Parameter(torch.randn(100))
    snapshot = Snapshot([p])
    read(p)
    assert snapshot.is_still([p])


@pytest.mark.parametrize("holder", [torch.Tensor.detach, lambda p: p.detach().numpy(), lambda p: p.data])
def test_one_who_had_the_memory_before_is_seen_and_stays_where_the_tensor_is(holder):
    p = nn.Parameter(torch.randn(100))
    held = holder(p)
    snapshot = Snapshot([p])
    assert snapshot.is_still([p])
    held[0] = 7
    assert not snapshot.is_still([p])
    assert p[0] == 7


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")  # LBFGS's own, before torch 2.10
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor, torch.optim.LBFGS])
def test_an_optimizer_steps_as_ever_and_is_seen(optimizer):
    p = nn.Parameter(torch.randn(10, 10))
    twin = copy.deepcopy(p)
    for parameter in (p, twin):
        snapshot = Snapshot([p])
        optimizer([parameter], lr=0.1).step(lambda q=parameter: (q.square().sum().backward(), q.square().sum())[1])
    assert torch.equal(p, twin)
    p.data.zero_()
    assert not snapshot.is_still([p])


def test_a_file_written_of_it_has_its_numbers():
    p = nn.Parameter(torch.randn(100))
    Snapshot([p])
    file = io.BytesIO()
    torch.save(p, file)
    file.seek(0)
    assert torch.equal(torch.load(file), p)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_lazy_copy_is_a_copy(memory, tmp_path):
    p = tensor(memory, tmp_path)
    before, twin = p.clone(), lazy_copy(p)
    twin.data.zero_()
    assert torch.equal(p, before)
    again = lazy_copy(p)
    p.data.zero_()
    assert torch.equal(again, before)
    assert address(again) != address(p)
