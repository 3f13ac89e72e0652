"""Copying, pickling, and one read a forward."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from spectral_param import (
    Band,
    SVDParametrization,
    register_svd_parametrization,
    remove_svd_parametrization,
    svd_parametrizations,
)

# torch says so of plain modules too
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

RECURRENT = {
    "RNN": lambda: nn.RNN(3, 5),
    "GRU": lambda: nn.GRU(3, 5, num_layers=2, batch_first=True),
    "LSTM": lambda: nn.LSTM(3, 5, num_layers=2, bidirectional=True, dropout=0.0),
    "LSTM with projection": lambda: nn.LSTM(3, 5, proj_size=2),
}
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def register_recurrent(module):
    """Every matrix of the module, gate by gate."""
    gates = GATES[type(module).__name__]
    for name, parameter in list(module.named_parameters()):
        if parameter.dim() == 2:
            register_svd_parametrization(module, name, chunks=1 if "weight_hr" in name else gates)
    return module


@pytest.fixture(params=RECURRENT)
def twins(request):
    """A plain recurrent module and a registered one with the same weights."""
    plain = RECURRENT[request.param]()
    return plain, register_recurrent(copy.deepcopy(plain))


def run(module, x, hx=None):
    output, state = module(x, hx)
    return [output, *(state if isinstance(state, tuple) else (state,))]


@pytest.fixture
def evaluations(monkeypatch):
    counts = {}
    forward = SVDParametrization.forward

    def counting(self, *factors, **way):
        counts[id(self)] = counts.get(id(self), 0) + 1
        return forward(self, *factors, **way)

    monkeypatch.setattr(SVDParametrization, "forward", counting)
    return counts


@pytest.mark.parametrize("training", [True, False])
def test_each_weight_is_evaluated_once_a_forward(twins, evaluations, training):
    _, module = twins
    module.train(training)
    module(torch.randn(4, 2, 3))
    assert evaluations == {id(p): 1 for _, p in svd_parametrizations(module)}


def inputs():
    x = torch.randn(4, 2, 3)
    yield "batched", x
    yield "unbatched", x[:, 0]
    yield "packed", nn.utils.rnn.pack_sequence([torch.randn(2, 3), torch.randn(5, 3)], enforce_sorted=False)


@pytest.mark.parametrize("x", [x for _, x in inputs()], ids=[n for n, _ in inputs()])
def test_equal_to_a_plain_twin_before_and_after_a_step(twins, x):
    plain, module = twins

    def check():
        for want, got in zip(run(plain, x), run(module, x), strict=True):
            if isinstance(want, nn.utils.rnn.PackedSequence):
                want, got = want.data, got.data
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)

    check()
    output = run(module, x)[0]
    loss = (output.data if isinstance(output, nn.utils.rnn.PackedSequence) else output).square().sum()
    loss.backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            assert not torch.equal(parameter, getattr(module, name))
            parameter.copy_(getattr(module, name))
    check()


def test_initial_state_given(twins):
    plain, module = twins
    x = torch.randn(4, 2, 3)
    _, state = plain(x)
    hx = tuple(torch.randn_like(s) for s in state) if isinstance(state, tuple) else torch.randn_like(state)
    for want, got in zip(run(plain, x, hx), run(module, x, hx), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def no_graph_is_held(module):
    def tensors(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from tensors(item)

    return all(t.grad_fn is None for m in module.modules() for v in vars(m).values() for t in tensors(v))


def test_nothing_is_held_after_a_forward(twins):
    _, module = twins
    module(torch.randn(4, 2, 3))
    assert no_graph_is_held(module)
    with pytest.raises((RuntimeError, ValueError)):
        module(torch.randn(4, 2, 7))
    assert no_graph_is_held(module)
    module.double().float()
    assert no_graph_is_held(module)


def copies(module):
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    yield copy.deepcopy(module)
    yield pickle.loads(pickle.dumps(module))
    yield torch.load(buffer, weights_only=False)


def test_recurrent_modules_are_copied_and_pickled_after_a_forward(twins):
    _, module = twins
    x = torch.randn(4, 2, 3)
    want = run(module, x)
    for twin in copies(module):
        for a, b in zip(run(twin, x), want, strict=True):
            assert torch.equal(a, b)


def model():
    layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    register_svd_parametrization(layers[0], sigma=Band(0.1), init="orthogonal")
    register_svd_parametrization(layers[2], reflectors=(1, 2), init="orthogonal")
    return layers


def test_copies_are_independent():
    original = model()
    x = torch.randn(2, 4)
    want = original(x)
    for twin in copies(original):
        assert torch.equal(twin(x), want)
        twin(x).sum().backward()
        assert all(p.grad is None for p in original.parameters())
        for (_, ours), (_, theirs) in zip(svd_parametrizations(original), svd_parametrizations(twin), strict=True):
            assert all(f is not g for f, g in zip(ours.factors, theirs.factors, strict=True))
        remove_svd_parametrization(twin)
        assert torch.equal(original(x), want)
        torch.testing.assert_close(twin(x), want)
    twin = copy.deepcopy(original)
    remove_svd_parametrization(original)
    assert torch.equal(twin(x), want)


def test_copies_within_cached_have_their_own_weights():
    original = model()
    with nn.utils.parametrize.cached():
        original[0].weight  # noqa: B018  # fills the cache
        twin = copy.deepcopy(original)
        with torch.no_grad():
            for _, p in svd_parametrizations(twin):
                p.factors[0].add_(torch.randn_like(p.factors[0]))
        assert not torch.equal(original[0].weight, twin[0].weight)


def test_state_dict_round_trip():
    original, other = model(), model()
    x = torch.randn(2, 4)
    other.load_state_dict(original.state_dict())
    assert torch.equal(other(x), original(x))
    assert all(not k.endswith("weight") for k in original.state_dict())


def test_a_subclass_with_state_of_its_own_is_copied():
    layer = Counting(3, 3)
    register_svd_parametrization(layer)
    layer(torch.randn(1, 3))
    for twin in copies(layer):
        assert twin.calls == 1
        twin(torch.randn(1, 3))
        assert (layer.calls, twin.calls) == (1, 2)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)
