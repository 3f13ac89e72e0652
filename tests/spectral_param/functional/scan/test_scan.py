import pytest
import torch
from torch import nn

from spectral_param.functional import rnn_scan
from spectral_param.functional.scan import NONLINEARITIES, low_rank_scan


def sizes(t=5, b=3, i=2, n=4):
    shapes = ((t, b, i), (b, n), (n, i), (n, n), (n,))
    return [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_equal_to_nn_rnn(nonlinearity):
    x, h0, m, w, b = sizes()
    rnn = nn.RNN(2, 4, nonlinearity=nonlinearity, dtype=torch.float64)
    rnn.load_state_dict({"weight_ih_l0": m, "weight_hh_l0": w, "bias_ih_l0": b, "bias_hh_l0": torch.zeros_like(b)})
    states, last = rnn_scan(x, h0, m, w, b, nonlinearity)
    want, want_last = rnn(x, h0[None])
    torch.testing.assert_close(states, want)
    torch.testing.assert_close(last, want_last[0])
    weights = torch.randn_like(states)
    got = torch.autograd.grad((states * weights).sum() + last.sin().sum(), (x, h0, m, w, b))
    loss = (want * weights).sum() + want_last.sin().sum()
    expected = torch.autograd.grad(loss, (x, h0, rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0))
    for a, e in zip(got, expected, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("output", [0, 1], ids=["states", "last"])
def test_gradients(nonlinearity, bias, output):
    *tensors, b = sizes(t=3, b=2, n=3)
    inputs = (*tensors, b if bias else None)

    def scan(*inputs):
        return rnn_scan(*inputs, nonlinearity, 0.2)[output]

    assert torch.autograd.gradcheck(scan, inputs)
    assert torch.autograd.gradgradcheck(scan, inputs)


def test_only_what_needs_a_gradient_gets_one():
    x, h0, m, w, b = (t.detach() for t in sizes())
    w.requires_grad_()
    rnn_scan(x, h0, m, w, b)[1].sum().backward()
    assert w.grad is not None
    assert m.grad is x.grad is h0.grad is b.grad is None


def test_an_empty_sequence_ends_where_it_began():
    x, h0, m, w, b = sizes(t=0)
    states, last = rnn_scan(x, h0, m, w, b)
    assert states.shape == (0, 3, 4)
    assert last is h0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"nonlinearity": "gelu"}, "nonlinearity"),
        ({"negative_slope": -0.1}, "negative_slope"),
        ({"negative_slope": float("nan")}, "negative_slope"),
        ({"h0": torch.zeros(2, 4)}, "h0"),
        ({"recurrent_weight": torch.zeros(4, 3)}, "recurrent_weight"),
        ({"x": torch.zeros(5, 3, 7)}, "x"),
        ({"x": torch.zeros(5, 2)}, "x"),
        ({"input_weight": torch.zeros(5, 2)}, "input_weight"),
        ({"bias": torch.zeros(1)}, "bias"),
    ],
)
def test_wrong_input_is_named(change, name):
    arguments = {
        "x": torch.zeros(5, 3, 2),
        "h0": torch.zeros(3, 4),
        "input_weight": torch.zeros(4, 2),
        "recurrent_weight": torch.zeros(4, 4),
    }
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        rnn_scan(**(arguments | change))
    if name != "recurrent_weight":
        del arguments["recurrent_weight"]
        thin = {"sigma": torch.zeros(4), "left": torch.zeros(4, 2), "right": torch.zeros(4, 2)}
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            low_rank_scan(**(arguments | thin | change))


@pytest.mark.parametrize("scan", [rnn_scan, low_rank_scan])
def test_dtypes_that_are_mixed_or_not_real_are_named(scan):
    factors = (torch.eye(4),) if scan is rnn_scan else (torch.ones(4), torch.zeros(4, 2), torch.zeros(4, 2))
    tensors = [torch.zeros(5, 3, 2), torch.zeros(3, 4), torch.zeros(4, 2), *factors]
    with pytest.raises(TypeError, match=r"x: expected real floating numbers, got torch\.complex64"):
        scan(*(tensor.cfloat() for tensor in tensors))
    for i, name in enumerate(["h0", "input_weight"], 1):
        mixed = [tensor.double() if j == i else tensor for j, tensor in enumerate(tensors)]
        with pytest.raises(TypeError, match=rf"{name}: expected the dtype of x, torch\.float32, got torch\.float64"):
            scan(*mixed)


@pytest.mark.parametrize(("name", "shape"), [("left", (3, 2)), ("right", (4, 1)), ("sigma", (4, 1))])
def test_wrong_factors_are_named(name, shape):
    factors = {"sigma": torch.zeros(4), "left": torch.zeros(4, 2), "right": torch.zeros(4, 2)}
    factors[name] = torch.zeros(shape)
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        low_rank_scan(torch.zeros(5, 3, 2), torch.zeros(3, 4), torch.zeros(4, 2), **factors)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("output", [0, 1], ids=["states", "last"])
def test_gradients_of_low_rank(nonlinearity, bias, output):
    x, h0, m, _, b = sizes(t=3, b=2, n=3)
    sigma, left, right = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((3,), (3, 2), (3, 2)))
    inputs = (x, h0, m, sigma, left, right, b if bias else None)

    def scan(*inputs):
        return low_rank_scan(*inputs, nonlinearity, 0.2)[output]

    want = rnn_scan(x, h0, m, torch.diag(sigma) - left @ right.mT, inputs[-1], nonlinearity, 0.2)[output]
    torch.testing.assert_close(scan(*inputs), want)
    assert torch.autograd.gradcheck(scan, inputs)
    assert torch.autograd.gradgradcheck(scan, inputs)


def both_scans():
    x, h0, m, w, b = (t.detach() for t in sizes())
    sigma, left, right = (torch.randn(s, dtype=torch.float64) for s in ((4,), (4, 2), (4, 2)))
    return {"dense": lambda: rnn_scan(x, h0, m, w, b), "thin": lambda: low_rank_scan(x, h0, m, sigma, left, right, b)}


@pytest.mark.parametrize("kind", ["dense", "thin"])
def test_the_last_state_is_a_tensor_of_its_own(kind):
    states, last = both_scans()[kind]()
    before = states.clone()
    torch.testing.assert_close(last, states[-1])
    last.add_(1)
    assert torch.equal(states, before)


@pytest.mark.parametrize("kind", ["dense", "thin"])
def test_float64_is_exempt_from_autocast(kind):
    scan = both_scans()[kind]
    want = scan()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(scan(), want, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["dense", "thin"])
def test_each_tensor_has_its_gradient_without_the_others(kind):
    shapes = {"dense": [(4, 4)], "thin": [(4,), (4, 2), (4, 2)]}[kind]
    x, h0, m, _, b = (t.detach() for t in sizes())
    tensors = [x, h0, m, *(torch.randn(shape, dtype=torch.float64) for shape in shapes)]
    scan = rnn_scan if kind == "dense" else low_rank_scan
    tensors.append(b)

    def gradients(needed):
        inputs = [t.clone().requires_grad_(i in needed) for i, t in enumerate(tensors)]
        scan(*inputs)[0].sin().sum().backward()
        return [t.grad for t in inputs]

    together = gradients(range(len(tensors)))
    for i, want in enumerate(together):
        alone = gradients([i])
        torch.testing.assert_close(alone.pop(i), want)
        assert all(grad is None for grad in alone)
