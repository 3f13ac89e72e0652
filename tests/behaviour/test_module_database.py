"""Every module of torch's own test database that has a weight to register, on its samples, against a plain twin."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp, stack_module_state, vmap
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from spectral_param import register_all, remove_svd_parametrization, svd_parametrizations
from spectral_param.parametrization.blocks import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from spectral_param.parametrization.svd import CHANNELS_LAST

pytest.importorskip("expecttest", reason="torch.testing._internal imports it")
pytestmark = [
    # said to plain modules too
    pytest.mark.filterwarnings("ignore:Lazy modules are a new feature"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True, but self.use_nested_tensor is False"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
    pytest.mark.filterwarnings("ignore:linear_cross_entropy. ``options`` ignored"),
    pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # by torch's own forward mode
]

SAMPLES = 6  # of each module, spread over those that torch has
NAMES = [
    *(f"{kind}{d}d" for kind in ("Conv", "ConvTranspose", "LazyConv", "LazyConvTranspose") for d in (1, 2, 3)),
    *("Linear", "Bilinear", "Embedding", "MultiheadAttention"),
    *(["LinearCrossEntropyLoss"] if hasattr(nn, "LinearCrossEntropyLoss") else []),  # of newer versions
    *("TransformerEncoder", "TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer"),
    *("RNNCell", "GRUCell", "LSTMCell", "RNN", "GRU", "LSTM"),
]
TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-9, "atol": 1e-9}}


@pytest.fixture(scope="module")
def database():
    """By name; read when a test runs, since that takes seconds and sets what it must not leave to other tests."""
    script = torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__
    from torch.testing._internal.common_modules import module_db

    torch._C.ScriptFunction.__call__, torch._C.ScriptMethod.__call__ = script
    torch.backends.__allow_nonbracketed_mutation_flag = True
    return {info.name.removeprefix("nn."): info for info in module_db}


@pytest.fixture(params=NAMES)
def cases(request, database):
    """Calls give plain modules, registered twins and their arguments."""
    info = database[request.param]

    def of(dtype):
        for training in (True, False) if info.train_and_eval_differ else (True,):
            samples = info.module_inputs_func(
                info, device="cpu", dtype=dtype, requires_grad=dtype.is_floating_point, training=training
            )
            for sample in samples[:: -(-len(samples) // SAMPLES)]:
                plain = made(info, sample, dtype).train(training)
                registered = copy.deepcopy(plain)
                assert register_all(registered).taken
                yield plain, registered, sample.forward_input

    return of


def made(info, sample, dtype):
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype)
    if any(is_lazy(parameter) for parameter in module.parameters()):
        run(module, sample.forward_input)
    return module


def run(module, given):
    """The tensors that come out."""
    args, kwargs = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (given.args, given.kwargs))
    return outputs(module(*args, **kwargs))


def outputs(result):
    leaves = tree_leaves(result, is_leaf=lambda x: isinstance(x, PackedSequence))
    leaves = [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in leaves]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def differentiable(given):
    """The call's floating tensors as leaves, and how to put others in their place."""
    leaves, spec = tree_flatten((given.args, given.kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.is_floating_point()]

    def call(module, tensors):
        put = dict(zip(places, tensors, strict=True))
        args, kwargs = tree_unflatten([put.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
        return tuple(outputs(module(*args, **kwargs)))

    return [leaves[i].detach().clone().requires_grad_() for i in places], call


def allowed(function, *args):
    """Whether torch does this, and rightly, to a plain module."""
    try:
        function(*args)
    except (RuntimeError, NotImplementedError, AssertionError):
        return False
    return True


def close(got, want, dtype):
    assert [x.dtype for x in got] == [x.dtype for x in want]
    torch.testing.assert_close(list(got), list(want), **TOLERANCE[dtype])


def test_no_module_of_the_database_is_left_out(database):
    found = set()
    for name, info in database.items():
        samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
        if register_all(made(info, samples[0], torch.float32)).taken:
            found.add(name)
    assert found == set(NAMES)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_outputs_are_those_of_the_plain_twin(cases, dtype):
    for plain, registered, given in cases(dtype):
        for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):  # some have a fast way without gradients
            with mode():
                close(run(registered, given), run(plain, given), dtype)


def test_gradients_are_those_of_the_plain_twin_by_the_chain_rule(cases):
    for plain, registered, given in cases(torch.float64):
        inputs, call = differentiable(given)
        want, got = call(plain, inputs), call(registered, inputs)
        grads = [torch.randn_like(x) for x in want]
        weights = {name: plain.get_parameter(name) for name, _ in svd_parametrizations(registered)}
        others = [name for name, _ in plain.named_parameters() if name not in weights]
        of = [*inputs, *(plain.get_parameter(name) for name in others), *weights.values()]
        by_plain = torch.autograd.grad(want, of, grads, allow_unused=True, materialize_grads=True)
        svds = [p for _, p in svd_parametrizations(registered)]
        factors = [factor for p in svds for factor in p.factors]
        of = [*inputs, *(registered.get_parameter(name) for name in others), *factors]
        by_registered = torch.autograd.grad(got, of, grads, allow_unused=True, materialize_grads=True)
        through = torch.autograd.grad([p(*p.factors) for p in svds], factors, by_plain[-len(svds) :])
        close(by_registered, [*by_plain[: -len(svds)], *through], torch.float64)


def test_copies_pickles_and_states_are_the_same_module(cases):
    for plain, registered, given in cases(torch.float32):
        want = run(registered, given)
        loaded, from_plain = copy.deepcopy(registered), copy.deepcopy(registered)
        for other in (loaded, from_plain):
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.uniform_(-1, 1)
        loaded.load_state_dict(registered.state_dict())
        for twin in (copy.deepcopy(registered), pickle.loads(pickle.dumps(registered)), loaded):
            assert type(twin) is type(registered)
            torch.testing.assert_close(run(twin, given), want, rtol=0, atol=0)
        from_plain.load_state_dict(plain.state_dict())
        close(run(from_plain, given), want, torch.float32)


def test_a_moved_module_is_the_moved_plain_one(cases):
    for (plain, registered, _), (_, _, given) in zip(cases(torch.float32), cases(torch.float64), strict=True):
        close(run(registered.double(), given), run(plain.double(), given), torch.float32)
        assert all(p.dtype == torch.float64 for _, p in svd_parametrizations(registered))


def test_channels_last_goes_in_and_out(cases):
    for plain, registered, given in cases(torch.float32):
        if not isinstance(plain, (*CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)):
            pytest.skip("torch has such a format for convolutions")
        x, format = given.args[0], CHANNELS_LAST.get(plain.weight.dim())
        if x.dim() == plain.weight.dim() and format:
            plain.to(memory_format=format)
            registered.to(memory_format=format)
            x = x.detach().to(memory_format=format)
            got, want = registered(x), plain(x)
            close([got], [want], torch.float32)
            assert got.stride() == want.stride()
            assert registered.weight.stride() == plain.weight.stride()


def with_parameters(module, parameters):
    return lambda *args, **kwargs: functional_call(module, parameters, args, kwargs)


def ensemble(members, given):
    parameters, _ = stack_module_state(members)
    return vmap(lambda parameters: run(with_parameters(members[0], parameters), given))(parameters)


def test_functional_call_and_vmap_over_factors(cases):
    stacked = 0
    for plain, registered, given in cases(torch.float64):
        other = copy.deepcopy(registered)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        before, want = run(registered, given), run(other, given)
        close(run(with_parameters(registered, dict(other.named_parameters())), given), want, torch.float64)
        close(run(registered, given), before, torch.float64)
        if allowed(ensemble, [plain, copy.deepcopy(plain)], given):
            stacked += 1
            both = [torch.stack(pair) for pair in zip(before, want, strict=True)]
            close(ensemble([registered, other], given), both, torch.float64)
    if not stacked:
        pytest.skip("torch has no vmap of the plain module")


def both_modes_agree(module, inputs, call):
    """By ⟨g, J t⟩ = ⟨Jᵀ g, t⟩, for a change t of parameters and inputs."""
    at = {name: p.detach() for name, p in module.named_parameters()}, [x.detach() for x in inputs]
    tangents = tree_map(torch.randn_like, at)
    _, along = jvp(lambda parameters, x: call(with_parameters(module, parameters), x), at, tangents)
    parameters, inputs = tree_map(lambda x: x.requires_grad_(), at)
    out = call(with_parameters(module, parameters), inputs)
    grads = [torch.randn_like(x) for x in out]
    back = torch.autograd.grad(out, tree_leaves(at), grads, allow_unused=True, materialize_grads=True)
    want = sum((b * t).sum() for b, t in zip(back, tree_leaves(tangents), strict=True))
    got = sum((g * a).sum() for g, a in zip(grads, along, strict=True))
    torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


def test_forward_mode_agrees_with_reverse_mode(cases):
    done = 0
    for plain, registered, given in cases(torch.float64):
        inputs, call = differentiable(given)
        if allowed(both_modes_agree, plain, inputs, call):  # torch's chunked loss has tangents of zero
            done += 1
            both_modes_agree(registered, inputs, call)
    if not done:
        pytest.skip("torch has no forward mode of the plain module")


def test_removal_gives_the_plain_module_back(cases):
    for plain, registered, given in cases(torch.float64):
        with torch.no_grad():  # a graph that is alive holds the factors, and removal would look for whose it is
            want = run(registered, given)
        remove_svd_parametrization(registered)
        assert [type(m) for m in registered.modules()] == [type(m) for m in plain.modules()]
        assert list(registered.state_dict()) == list(plain.state_dict())
        assert all(type(p) is nn.Parameter for p in registered.parameters())
        close(run(registered, given), want, torch.float64)
