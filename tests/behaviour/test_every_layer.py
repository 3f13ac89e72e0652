"""One matrix of tests for every kind of layer, against a dense twin that holds the same weight."""

import copy
import pickle
import warnings

import pytest
import torch
import torch._dynamo
from torch import nn

from spectral_param import register_svd_parametrization, remove_svd_parametrization, svd_parametrizations
from spectral_param.nn import SVDLinear

IMAGE = (2, 4, 6, 6)
SEQUENCE = (3, 2, 5)


def attend(module, x):
    return module(x, x, x, need_weights=False)


# a layer, its weights with their chunks, and the shape of an input
KINDS = {
    "Linear": (lambda: nn.Linear(5, 4), {"weight": 1}, (3, 5)),
    "SVDLinear": (lambda: nn.Linear(5, 4), {"weight": 1}, (3, 5)),
    "Bilinear": (lambda: nn.Bilinear(5, 3, 4), {"weight": 1}, (3, 5)),
    "Embedding": (lambda: nn.Embedding(7, 5), {"weight": 1}, None),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3), {"weight": 1}, (2, 4, 6)),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), {"weight": 1}, IMAGE),
    "Conv2d in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), {"weight": 2}, IMAGE),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), {"weight": 1}, (2, 2, 3, 3, 3)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3), {"weight": 1}, (2, 4, 6)),
    "ConvTranspose2d in groups": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), {"weight": 2}, IMAGE),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2), {"weight": 1}, (2, 2, 3, 3, 3)),
    "RNN": (lambda: nn.RNN(5, 4), {"weight_ih_l0": 1, "weight_hh_l0": 1}, SEQUENCE),
    "GRU": (lambda: nn.GRU(5, 4), {"weight_ih_l0": 3, "weight_hh_l0": 3}, SEQUENCE),
    "LSTM": (lambda: nn.LSTM(5, 4), {"weight_ih_l0": 4, "weight_hh_l0": 4}, SEQUENCE),
    "RNNCell": (lambda: nn.RNNCell(5, 4), {"weight_ih": 1, "weight_hh": 1}, (3, 5)),
    "GRUCell": (lambda: nn.GRUCell(5, 4), {"weight_hh": 3}, (3, 5)),
    "LSTMCell": (lambda: nn.LSTMCell(5, 4), {"weight_hh": 4}, (3, 5)),
    "attention": (lambda: nn.MultiheadAttention(4, 2), {"in_proj_weight": 3}, (3, 2, 4)),
    "attention of another width": (
        lambda: nn.MultiheadAttention(4, 2, kdim=4, vdim=4, bias=False),
        {"in_proj_weight": 3},
        (3, 2, 4),
    ),
}
COMPILED_BY_TORCH = [k for k in KINDS if k != "LSTM"]  # dynamo saves no plain LSTM's graph either


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def twins(kind, dtype):
    """A plain layer and a registered one with the same weights, to rounding."""
    make, weights, _ = KINDS[kind]
    plain = make().to(dtype)
    if kind == "SVDLinear":
        registered = SVDLinear.from_linear(plain)
    else:
        registered = copy.deepcopy(plain)
        for name, chunks in weights.items():
            register_svd_parametrization(registered, name, chunks=chunks)
    return plain, registered


def input_of(kind, dtype):
    shape = KINDS[kind][2]
    if shape is None:
        return torch.tensor([1, 3, 6])
    return torch.randn(shape).to(dtype).requires_grad_()


def run(kind, module, x):
    if "attention" in kind:
        return attend(module, x)[0]
    if kind == "Bilinear":
        return module(x, x.detach()[..., :3].clone())
    output = module(x)
    return output[0] if isinstance(output, tuple) else output


TOLERANCE = {
    torch.float64: {"rtol": 1e-11, "atol": 1e-11},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 5e-2, "atol": 5e-2},
}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("training", [True, False])
def test_same_outputs_gradients_and_step(kind, dtype, training):
    plain, registered = (m.train(training) for m in twins(kind, dtype))
    x = input_of(kind, dtype)
    want, got = run(kind, plain, x), run(kind, registered, x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, **TOLERANCE[dtype])
    grad = torch.randn_like(want)
    if x.requires_grad:
        (dx,) = torch.autograd.grad(got, x, grad, retain_graph=True)
        (dx_plain,) = torch.autograd.grad(want, x, grad, retain_graph=True)
        torch.testing.assert_close(dx, dx_plain, **TOLERANCE[dtype])
    # the step of the factors is that of the weight, taken through the parametrization by the chain rule
    names = list(KINDS[kind][1])
    weight_grads = torch.autograd.grad(want, [getattr(plain, n) for n in names], grad)
    factors = [list(p.factors) for _, p in svd_parametrizations(registered)]
    through = torch.autograd.grad(
        [getattr(registered, n) for n in names], [f for fs in factors for f in fs], weight_grads
    )
    got.backward(grad)
    for factor, gradient in zip([f for fs in factors for f in fs], through, strict=True):
        torch.testing.assert_close(
            factor.grad, gradient, rtol=TOLERANCE[dtype]["rtol"], atol=2 * TOLERANCE[dtype]["atol"]
        )


@pytest.mark.parametrize(
    ("dtype", "training", "steps"),
    [(torch.float32, True, 4), (torch.float32, False, 4), (torch.float64, True, 2), (torch.bfloat16, True, 2)],
)
def test_compiled_is_one_graph_over_steps(kind, dtype, training, steps):
    if kind not in COMPILED_BY_TORCH:
        pytest.skip("dynamo does not compile the plain layer")
    from torch._dynamo.testing import CompileCounterWithBackend

    _, module = twins(kind, dtype)
    module.train(training)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(module, fullgraph=True, backend=counter)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        x = input_of(kind, dtype)
        for _ in range(steps):
            got, want = run(kind, compiled, x), run(kind, module, x)
            torch.testing.assert_close(got, want, **TOLERANCE[dtype])
            optimizer.zero_grad()
            got.square().sum().backward()
            optimizer.step()
    assert counter.frame_count == 1


def test_copies_and_state(kind):
    plain, module = twins(kind, torch.float32)
    x = input_of(kind, torch.float32)
    want = run(kind, module, x)
    want.sum().backward()
    other = twins(kind, torch.float32)[1]
    other.load_state_dict(module.state_dict())
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(run(kind, twin, x), want)
    fresh = twins(kind, torch.float32)[1]
    fresh.load_state_dict(plain.state_dict())
    torch.testing.assert_close(run(kind, fresh, x), run(kind, plain, x), rtol=1e-4, atol=1e-5)


def test_removal(kind):
    if kind == "SVDLinear":
        pytest.skip("it has to_linear")
    plain, module = twins(kind, torch.float32)
    x = input_of(kind, torch.float32)
    want = run(kind, module, x)
    remove_svd_parametrization(module)
    assert type(module) is type(plain)
    assert [n for n, _ in module.named_parameters()] == [n for n, _ in plain.named_parameters()]
    torch.testing.assert_close(run(kind, module, x), want)


def test_autocast_computes_the_weight_in_float32(kind):
    _, module = twins(kind, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        for name, p in svd_parametrizations(module):
            weight = getattr(module, name)
            assert weight.dtype == torch.float32
            matrices = p.matrices.of(weight.detach())
            values = torch.linalg.svdvals(matrices)
            sigma = p.sigma.abs().sort(-1, descending=True).values.reshape(values.shape)
            torch.testing.assert_close(values, sigma, rtol=0, atol=1e-5)
        run(kind, module, input_of(kind, torch.float32)).float().sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_moving_to_another_dtype(kind, dtype):
    plain, module = twins(kind, torch.float32)
    plain.to(dtype)
    module.to(dtype)
    x = input_of(kind, dtype)
    if dtype == torch.float16 and kind != "Linear":
        x = None  # the CPU has no half kernel for every layer
    for name in KINDS[kind][1]:
        assert getattr(module, name).dtype == dtype
        torch.testing.assert_close(getattr(module, name), getattr(plain, name), rtol=5e-2, atol=5e-2)
    if x is not None:
        torch.testing.assert_close(run(kind, module, x), run(kind, plain, x), rtol=0.1, atol=0.1)


def test_nothing_warns_in_ordinary_use(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, module = twins(kind, torch.float32)
        module.train()
        run(kind, module, input_of(kind, torch.float32)).sum().backward()
        module.eval()
        with torch.no_grad():
            run(kind, module, input_of(kind, torch.float32))
        str(module), repr(module)
