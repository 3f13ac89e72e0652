import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from spectral_param import Band, Fixed, SVDParametrization, singular_values, svd_parametrizations
from spectral_param.nn import SpectralRNN


def plain_twin(rnn, **kwargs):
    twin = nn.RNN(rnn.input_size, rnn.hidden_size, rnn.num_layers, rnn.nonlinearity, **kwargs)
    with torch.no_grad():
        for layer in range(rnn.num_layers):
            getattr(twin, f"weight_ih_l{layer}").copy_(getattr(rnn, f"weight_ih_l{layer}"))
            getattr(twin, f"weight_hh_l{layer}").copy_(getattr(rnn, f"weight_hh_l{layer}"))
            if rnn.bias:
                nn.init.normal_(getattr(rnn, f"bias_l{layer}"))
                getattr(twin, f"bias_ih_l{layer}").copy_(getattr(rnn, f"bias_l{layer}"))
                getattr(twin, f"bias_hh_l{layer}").zero_()
    return twin


def assert_equal_outputs(got, want):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(getattr(a, "data", a), getattr(b, "data", b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
@pytest.mark.parametrize(("layers", "bias", "batch_first"), [(1, True, False), (2, True, True), (3, False, False)])
def test_outputs_are_those_of_nn_rnn(nonlinearity, layers, bias, batch_first):
    rnn = SpectralRNN(3, 6, layers, nonlinearity, bias, batch_first, reflectors=2)
    twin = plain_twin(rnn, bias=bias, batch_first=batch_first)
    x = torch.randn(2, 5, 3) if batch_first else torch.randn(5, 2, 3)
    hx = torch.randn(layers, 2, 6)
    assert_equal_outputs(rnn(x), twin(x))
    assert_equal_outputs(rnn(x, hx), twin(x, hx))
    assert_equal_outputs(rnn(x[0]), twin(x[0]))
    assert_equal_outputs(rnn(x[0], hx[:, 0]), twin(x[0], hx[:, 0]))
    sequences = [torch.randn(n, 3) for n in (2, 5, 1, 4)]
    for packed in (
        pack_sequence(sequences, enforce_sorted=False),
        pack_sequence(sorted(sequences, key=len, reverse=True)),
    ):
        got, want = rnn(packed), twin(packed)
        assert_equal_outputs(got, want)
        assert torch.equal(got[0].batch_sizes, want[0].batch_sizes)
        for a, b in zip(nn.utils.rnn.unpack_sequence(got[0]), nn.utils.rnn.unpack_sequence(want[0]), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_weights_start_as_those_of_nn_rnn_and_biases_at_zero():
    rnn = SpectralRNN(3, 64, 2, learn_initial_state=True)
    for layer in range(2):
        weight, bias = rnn.get_parameter(f"weight_ih_l{layer}"), rnn.get_parameter(f"bias_l{layer}")
        assert 0.12 < weight.abs().max() <= 0.125
        assert not bias.any()
    assert not rnn.initial_state.any()


def test_packed_sequences_with_a_state_given():
    rnn = SpectralRNN(3, 6)
    twin = plain_twin(rnn)
    packed = pack_sequence([torch.randn(n, 3) for n in (2, 5, 1)], enforce_sorted=False)
    hx = torch.randn(1, 3, 6)
    assert_equal_outputs(rnn(packed, hx), twin(packed, hx))


@pytest.mark.parametrize("reflectors", [2, None])
@pytest.mark.parametrize("layers", [1, 2])
def test_gradients_of_packed_sequences_are_those_of_nn_rnn(reflectors, layers):
    rnn = SpectralRNN(3, 6, layers, "relu", reflectors=reflectors).double()
    for layer in range(layers):
        nn.init.normal_(getattr(rnn, f"weight_ih_l{layer}"))
    twin = plain_twin(rnn, dtype=torch.float64)
    packed = pack_sequence([torch.randn(n, 3, dtype=torch.float64) for n in (2, 5, 2, 1, 9)], enforce_sorted=False)
    found = []
    for net in (rnn, twin):
        hx = torch.ones(layers, 5, 6, dtype=torch.float64, requires_grad=True)
        data = packed.data.clone().requires_grad_()
        output, last = net(packed._replace(data=data), hx)
        (output.data.square().sum() + (last * torch.arange(5.0)[:, None]).sum()).backward()
        found.append([hx.grad, data.grad, net.weight_ih_l0.grad])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_states_that_grow_beyond_the_numbers_after_a_sequence_has_ended_are_none_of_it():
    rnn = SpectralRNN(1, 2, nonlinearity="relu", bias=False, init="weight")
    rnn.weight_hh_l0 = nn.Parameter(1.5 * torch.eye(2))
    nn.init.ones_(rnn.weight_ih_l0)
    output, _ = rnn(pack_sequence([torch.ones(3, 1), -torch.ones(300, 1)], enforce_sorted=False))
    output.data.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in rnn.parameters())


def test_dtypes_of_packed_sequences_under_autocast():
    rnn = SpectralRNN(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        output, last = rnn(pack_sequence([torch.randn(n, 3) for n in (5, 2)]))
    assert (output.data.dtype, last.dtype) == (torch.bfloat16, torch.bfloat16)


def test_numbers_that_it_cannot_go_by_are_refused():
    with pytest.raises(TypeError, match=r"h0: expected the dtype of x, torch\.float32, got torch\.float64"):
        SpectralRNN(3, 6)(torch.randn(5, 2, 3), torch.zeros(1, 2, 6, dtype=torch.float64))
    for slope in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="negative_slope: expected a finite number, at least 0"):
            SpectralRNN(3, 6, negative_slope=slope)


def test_the_weight_is_computed_once_a_sequence(monkeypatch):
    calls = []
    forward = SVDParametrization.forward
    monkeypatch.setattr(SVDParametrization, "forward", lambda self, *f, **w: calls.append(0) or forward(self, *f, **w))
    SpectralRNN(3, 6)(pack_sequence([torch.randn(n, 3) for n in (5, 3, 2)]))
    assert len(calls) == 1
    calls.clear()
    SpectralRNN(3, 6)(torch.randn(50, 2, 3))
    assert len(calls) == 1


@pytest.mark.parametrize("n_in", [1, 7])
def test_trained_numbers_are_those_of_the_paper(n_in):
    """Spectral-RNN with a trained initial state: 2 H + n + n n_i + n + n."""
    n, m = 32, 16
    rnn = SpectralRNN(n_in, n, reflectors=m, sigma=Band(0.01), learn_initial_state=True)
    h = sum(n - k for k in range(m))
    assert h == 392
    assert sum(p.numel() for p in rnn.parameters()) == 2 * h + n + n * n_in + n + n
    ornn = SpectralRNN(n_in, n, reflectors=(m, 0), sigma=Fixed(), learn_initial_state=True)
    assert sum(p.numel() for p in ornn.parameters()) == h + n * n_in + n + n


def test_initial_values():
    rnn = SpectralRNN(3, 16, 2, sigma=Band(0.1), learn_initial_state=True)
    assert rnn.initial_state.shape == (2, 16)
    assert not rnn.initial_state.any()
    for layer in range(2):
        torch.testing.assert_close(singular_values(rnn, f"weight_hh_l{layer}"), torch.ones(16))
        assert getattr(rnn, f"weight_ih_l{layer}").abs().max() <= 1 / 4
    before = rnn.weight_hh_l0.detach().clone()
    rnn.reset_parameters()
    torch.testing.assert_close(singular_values(rnn, "weight_hh_l0"), torch.ones(16))
    assert not torch.equal(rnn.weight_hh_l0, before)


def test_learned_initial_state_is_used_and_trained():
    rnn = SpectralRNN(3, 6, learn_initial_state=True)
    nn.init.normal_(rnn.initial_state)
    x = torch.randn(5, 2, 3)
    assert_equal_outputs(rnn(x), rnn(x, rnn.initial_state.unsqueeze(1).expand(1, 2, 6)))
    rnn(x)[0].sum().backward()
    assert rnn.initial_state.grad.abs().max() > 0


def test_dropout_between_layers_in_training_only():
    rnn = SpectralRNN(3, 6, 2, dropout=0.5)
    x = torch.randn(5, 2, 3)
    assert not torch.equal(rnn(x)[0], rnn(x)[0])
    rnn.eval()
    assert torch.equal(rnn(x)[0], rnn(x)[0])


def test_copies():
    rnn = SpectralRNN(3, 6, 2, reflectors=2)
    x = torch.randn(5, 2, 3)
    want = rnn(x)
    for twin in (copy.deepcopy(rnn), pickle.loads(pickle.dumps(rnn))):
        assert torch.equal(twin(x)[0], want[0])
        assert len(list(svd_parametrizations(twin))) == 2


def test_double_and_bfloat16_autocast():
    rnn = SpectralRNN(3, 6, dtype=torch.float64)
    assert rnn(torch.randn(5, 2, 3, dtype=torch.float64))[0].dtype == torch.float64
    rnn = SpectralRNN(3, 6)
    x = torch.randn(5, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        out = rnn(x)[0]
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), rnn(x)[0], rtol=0.05, atol=0.05)
    out.float().sum().backward()


@pytest.mark.parametrize(
    ("kwargs", "name"),
    [
        ({"input_size": 0}, "input_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"num_layers": 0}, "num_layers"),
        ({"nonlinearity": "gelu"}, "nonlinearity"),
        ({"dropout": 1.5}, "dropout"),
        ({"negative_slope": -1.0}, "negative_slope"),
        ({"reflectors": 7}, "reflectors"),
        ({"init": "zeros"}, "init"),
    ],
)
def test_wrong_arguments_are_named(kwargs, name):
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        SpectralRNN(**({"input_size": 3, "hidden_size": 6} | kwargs))


def test_wrong_inputs_are_named():
    rnn = SpectralRNN(3, 6)
    for x in (torch.randn(5, 2, 4), torch.randn(3), torch.randn(1, 1, 1, 3)):
        with pytest.raises(ValueError, match="^input: expected"):
            rnn(x)
    with pytest.raises(ValueError, match="^hx: expected"):
        rnn(torch.randn(5, 2, 3), torch.randn(1, 3, 6))
