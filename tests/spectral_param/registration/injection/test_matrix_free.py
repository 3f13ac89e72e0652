import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from spectral_param import SVDParametrization, register_svd_parametrization
from spectral_param.nn import SpectralRNN


@pytest.fixture
def built(monkeypatch):
    """How often a W was built."""
    count = []
    forward = SVDParametrization.forward
    monkeypatch.setattr(
        SVDParametrization, "forward", lambda self, *f, **w: (count.append(1), forward(self, *f, **w))[1]
    )
    return count


def linear(matrix_free=None, reflectors=2, **kwargs):
    torch.manual_seed(0)
    layer = nn.Linear(24, 20, **kwargs)
    return register_svd_parametrization(layer, reflectors=reflectors, init="orthogonal", matrix_free=matrix_free)


@pytest.mark.parametrize("reflectors", [1, 4, 20, (0, 3), (3, 0), (2, 20)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (0,)])
def test_both_ways_give_the_same(built, reflectors, bias, batch):
    with_weight, without = (linear(way, reflectors, bias=bias, dtype=torch.float64) for way in (False, True))
    x = torch.randn(*batch, 24, dtype=torch.float64, requires_grad=True)
    outputs = [layer(x) for layer in (with_weight, without)]
    assert len(built) == 1
    torch.testing.assert_close(*outputs)
    cotangent = torch.randn_like(outputs[0])
    grads = [
        torch.autograd.grad(out, [x, *layer.parameters()], cotangent)
        for out, layer in zip(outputs, (with_weight, without), strict=True)
    ]
    torch.testing.assert_close(*grads)


def test_chunks_and_frozen_reflectors():
    x = torch.randn(5, 24)
    for kwargs in ({"chunks": 4}, {"train": "sigma"}, {"train": "sigma", "chunks": 4}):
        layers = []
        for way in (False, True):
            torch.manual_seed(1)
            layer = nn.Linear(24, 20)
            layers.append(
                register_svd_parametrization(layer, reflectors=2, init="orthogonal", matrix_free=way, **kwargs)
            )
        torch.testing.assert_close(layers[0](x), layers[1](x), rtol=1e-5, atol=1e-5)


def test_few_vectors_pass_the_weight_by_and_many_do_not(built):
    layer = linear(reflectors=20)
    layer(torch.randn(2, 24))
    assert not built
    layer(torch.randn(300, 24))
    assert len(built) == 1


def test_the_weight_is_built_where_somebody_wants_it(built):
    layer, x = linear(), torch.randn(2, 24)
    want = layer(x)
    assert not built
    with parametrize.cached():
        torch.testing.assert_close(layer(x), want)
    assert len(built) == 1
    handle = layer.parametrizations.weight[0].register_forward_hook(lambda *_: None)
    torch.testing.assert_close(layer(x), want)
    assert len(built) == 2
    handle.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    before = len(built)
    assert before > 2
    parametrize.register_parametrization(layer, "weight", nn.Identity())
    torch.testing.assert_close(layer(x), want)
    assert len(built) > before


def test_a_forward_of_its_own_is_left_alone(built):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = register_svd_parametrization(Doubled(6, 6), reflectors=1, init="orthogonal", matrix_free=True)
    layer(torch.randn(2, 6))
    assert len(built) == 1


def test_half_precision_and_wrong_inputs_are_those_of_linear():
    layer = linear()
    with pytest.raises(RuntimeError):
        layer(torch.randn(2, 23))
    assert layer.bfloat16()(torch.randn(2, 24).bfloat16()).dtype == torch.bfloat16


def test_copies_pickles_and_compiled(built):
    layer, x = linear(True), torch.randn(3, 24)
    want = layer(x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x), want)
    assert not built
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), want)


def test_wrong_argument():
    with pytest.raises(TypeError, match="matrix_free: expected None, True or False, got str"):
        register_svd_parametrization(nn.Linear(2, 2), matrix_free="yes")


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu", "leaky_relu"])
@pytest.mark.parametrize("reflectors", [2, (1, 3)])
def test_recurrence_both_ways(built, nonlinearity, reflectors):
    networks = []
    for way in (False, True):
        torch.manual_seed(0)
        networks.append(SpectralRNN(2, 6, 2, nonlinearity, reflectors=reflectors, matrix_free=way, dtype=torch.float64))
    x, hx = torch.randn(7, 3, 2, dtype=torch.float64), torch.randn(2, 3, 6, dtype=torch.float64)
    outputs = [network(x, hx) for network in networks]
    assert len(built) == 2
    torch.testing.assert_close(*outputs)
    weight = torch.randn_like(outputs[0][0])
    losses = [(states * weight).sum() + last.sin().sum() for states, last in outputs]
    grads = [
        torch.autograd.grad(loss, list(network.parameters())) for loss, network in zip(losses, networks, strict=True)
    ]
    torch.testing.assert_close(*grads)


def test_recurrence_chooses_by_size(built):
    SpectralRNN(1, 64, reflectors=8)(torch.randn(3, 2, 1))
    assert not built
    SpectralRNN(1, 64, reflectors=9)(torch.randn(3, 2, 1))
    SpectralRNN(1, 64, reflectors=8).double()(torch.randn(0, 2, 1).double())
    assert len(built) == 2


def test_weights_handed_out_elsewhere_do_not_compile_a_layer_again():
    from torch._dynamo.testing import CompileCounterWithBackend

    layer, other = (register_svd_parametrization(nn.Linear(4, 4)) for _ in range(2))
    third = register_svd_parametrization(nn.Linear(4, 4))
    held = [other.weight]
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for _ in range(2):
        compiled(torch.randn(2, 4))
        held.append(third.weight)
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # a list of parametrizations takes no tensors
@pytest.mark.parametrize("place", ["list", "parametrization"])
@pytest.mark.parametrize(
    "hook", ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook", "module_forward_hook"]
)
def test_whoever_listens_is_heard(built, place, hook):
    layer, x, heard = linear(True), torch.randn(2, 24), []
    want = layer(x)
    assert not built
    held = layer.parametrizations.weight
    module = held if place == "list" else held[0]

    def listen(caller, *_):
        heard.extend([caller] if caller is module else [])

    if hook == "module_forward_hook":  # of all modules
        handle = nn.modules.module.register_module_forward_hook(listen)
    else:
        handle = getattr(module, f"register_{hook}")(listen)
    got = layer(x)
    got.sum().backward()
    handle.remove()
    torch.testing.assert_close(got, want)
    assert heard == [module]


@pytest.mark.parametrize("matrix_free", [None, True, False])
@pytest.mark.parametrize("part", ["list", "SVD", "map"])
@pytest.mark.parametrize("way", ["forward", "forward hook", "pre-hook", "backward hook", "backward pre-hook"])
def test_whoever_listens_to_a_part_is_heard(matrix_free, part, way):
    layer, heard = linear(matrix_free), []
    held = layer.parametrizations.weight
    module = {"list": held, "SVD": held[0], "map": held[0].sigma_map}[part]
    x = torch.randn(4, 24, requires_grad=True)
    want = layer(x)

    def hear(*_):
        heard.append(way)

    if way == "forward":
        forward = module.forward
        module.forward = lambda *args, **kwargs: (hear(), forward(*args, **kwargs))[1]
    elif way == "forward hook":
        module.register_forward_hook(hear)
    elif way == "pre-hook":
        module.register_forward_pre_hook(hear)
    elif way == "backward hook":
        module.register_full_backward_hook(hear)
    else:
        module.register_full_backward_pre_hook(hear)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that no input of the list requires a gradient
        y = layer(x)
        y.sum().backward()
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    assert heard


@pytest.mark.parametrize("matrix_free", [None, True, False])
def test_a_hook_on_all_modules_hears_the_parts(matrix_free):
    layer, heard = linear(matrix_free), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(type(module).__name__))
    layer(torch.randn(4, 24))
    handle.remove()
    assert "SVDParametrization" in heard


def test_a_recurrence_hears_who_replaced_the_forward_of_its_list():
    rnn, heard = SpectralRNN(1, 64, reflectors=4, matrix_free=True), []
    held = rnn.parametrizations.weight_hh_l0
    forward = held.forward
    held.forward = lambda: (heard.append(1), forward())[1]
    rnn(torch.randn(3, 2, 1))
    assert heard
