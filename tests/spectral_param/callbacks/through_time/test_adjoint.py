import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from spectral_param import register_svd_parametrization
from spectral_param.callbacks.through_time.adjoint import RecordedCall, gradients_of, save_rng
from spectral_param.nn import SpectralRNN

TIMES = (0, 1, 4, 6, 7)
LAYERS = {
    "rnn": lambda **options: nn.RNN(3, 4, **options),
    "relu": lambda **options: nn.RNN(3, 4, 2, nonlinearity="relu", **options),
    "lstm": lambda **options: nn.LSTM(3, 4, 2, **options),
    "projected": lambda **options: nn.LSTM(3, 6, proj_size=4, **options),
    "gru": lambda **options: nn.GRU(3, 4, **options),
    "svd": lambda **options: register_svd_parametrization(nn.RNN(3, 4, **options), "weight_hh_l0"),
    "spectral": lambda **options: SpectralRNN(3, 4, 2, **options),
}


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def states(final):
    return final if isinstance(final, tuple) else (final,)


def loss(output, final):
    """Feels outputs unevenly, and the last state."""
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    return (weights * output.sin()).sum() + sum(state.square().sum() for state in states(final))


def recorded(layer, *args, loss=loss, **kwargs):
    """A call, after the backward of its loss."""
    calls = []
    rng = save_rng(torch.device("cpu")) if layer.training and getattr(layer, "dropout", 0) else {}

    def record(module, args, kwargs, result):
        calls.append(RecordedCall(module, args, kwargs, result, rng))

    handle = layer.register_forward_hook(record, with_kwargs=True)
    output, final = layer(*args, **kwargs)
    handle.remove()
    loss(output.data if isinstance(output, PackedSequence) else output, final).backward()
    return calls[0]


def states_of(call, times):
    return gradients_of(call, times)[0]


def step_by_step(layer, x, state):
    """∂L/∂h⁽ᵗ⁾ by autograd through a loop over time, where every state is a tensor of its own; x is (T, N, …)."""
    for tensor in states(state):
        tensor.requires_grad_()
    path = [state]
    for t in range(len(x)):
        path.append(layer(x[t : t + 1], path[-1])[1])
    output = torch.stack([states(state)[0][-1] for state in path[1:]])
    value = loss(output, path[-1])
    return [
        torch.autograd.grad(value, states(state), retain_graph=True, allow_unused=True, materialize_grads=True)
        for state in path
    ]


def zeros(layer, batch):
    size = layer.num_layers, batch, layer.hidden_size
    if not isinstance(layer, nn.LSTM):
        return torch.zeros(size)
    return torch.zeros(*size[:2], layer.proj_size or layer.hidden_size), torch.zeros(size)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("given", [False, True])
def test_against_autograd_step_by_step(kind, given):
    layer = LAYERS[kind]()
    x = torch.randn(7, 2, 3)
    start = zeros(layer, batch=2)
    if given:
        start = tuple(torch.randn_like(s) for s in start) if isinstance(start, tuple) else torch.randn_like(start)
    found = states_of(recorded(layer, x, *[start] * given), TIMES)
    expected = step_by_step(layer, x, start)
    for t in TIMES:
        for a, b in zip(found[t], expected[t], strict=True):
            torch.testing.assert_close(a, b)


def test_hx_by_keyword_batch_first_and_without_batch():
    layer = nn.GRU(3, 4, batch_first=True)
    x, start = torch.randn(2, 7, 3), torch.randn(1, 2, 4)
    found = states_of(recorded(layer, x, hx=start), TIMES)

    weights = torch.linspace(-1, 1, 56).view(2, 7, 4)
    path, value = [start.clone().requires_grad_()], 0
    for t in range(7):
        path.append(layer(x[:, t : t + 1], path[-1])[1])
        value = value + (weights[:, t] * path[-1][0].sin()).sum()
    gradients = torch.autograd.grad(value + path[-1].square().sum(), path)
    for t in TIMES:
        torch.testing.assert_close(found[t][0], gradients[t])

    alone = states_of(recorded(layer, x[0], start[:, 0]), TIMES)
    assert [alone[t][0].shape for t in TIMES] == [(1, 4)] * 5


def test_learned_initial_state():
    layer = SpectralRNN(3, 4, learn_initial_state=True)
    nn.init.normal_(layer.initial_state)
    found = states_of(recorded(layer, torch.randn(7, 2, 3)), [0])
    torch.testing.assert_close(found[0][0].sum(1), layer.initial_state.grad)


@pytest.mark.parametrize("kind", [nn.LSTM, SpectralRNN])
def test_dropout_is_repeated(kind):
    layer = kind(3, 4, 2, dropout=0.5)
    x = torch.randn(7, 2, 3)
    start = zeros(layer, batch=2)
    for state in states(start):
        state.requires_grad_()
    call = recorded(layer, x, start)
    after = torch.get_rng_state()
    assert not call.can_be_cut
    found = states_of(call, [0])
    for gradient, state in zip(found[0], states(start), strict=True):
        torch.testing.assert_close(gradient, state.grad)
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_sequences_and_both_directions_at_the_start(bidirectional):
    layer = nn.LSTM(3, 4, bidirectional=bidirectional)
    packed = pack_padded_sequence(torch.randn(7, 3, 3), torch.tensor([3, 7, 5]), enforce_sorted=False)
    start = tuple(torch.randn(1 + bidirectional, 3, 4, requires_grad=True) for _ in range(2))
    found = states_of(recorded(layer, packed, start), [0])
    for gradient, state in zip(found[0], start, strict=True):
        torch.testing.assert_close(gradient, state.grad)


@pytest.mark.parametrize("times", [TIMES, (3,), ()])
@pytest.mark.parametrize("kind", ["svd", "spectral"])
def test_gradients_of_weights(kind, times):
    layer = LAYERS[kind]()
    x = torch.randn(7, 2, 3)
    names = [name for name in ("weight_hh_l0", "weight_hh_l1") if hasattr(layer, name)]
    found = gradients_of(recorded(layer, x), times, names)[1]
    with torch.nn.utils.parametrize.cached():
        weights = [getattr(layer, name) for name in names]
        expected = torch.autograd.grad(loss(*layer(x)), weights)
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_a_frozen_weight_has_none():
    layer = LAYERS["svd"]()
    for factor in layer.parametrizations.parameters():
        factor.requires_grad_(False)
    assert gradients_of(recorded(layer, torch.randn(7, 2, 3)), [0], ["weight_hh_l0"])[1] == {}


def test_parameters_keep_their_gradients():
    layer = SpectralRNN(3, 4)
    call = recorded(layer, torch.randn(7, 2, 3))
    before = [p.grad.clone() for p in layer.parameters()]
    states_of(call, TIMES)
    assert all(torch.equal(a, p.grad) for a, p in zip(before, layer.parameters(), strict=True))


def test_only_one_of_output_and_state_is_used():
    layer = nn.RNN(3, 4)
    x = torch.randn(7, 2, 3)
    picks = (lambda output, final: output[-1].sin().sum(), lambda output, final: final.sin().sum())
    found = [states_of(recorded(layer, x, loss=pick), TIMES) for pick in picks]
    for t in TIMES:
        torch.testing.assert_close(found[0][t], found[1][t])
