import copy
import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

from spectral_param import Band, Fixed, SigmaMap, SVDParametrization, register_svd_parametrization, together
from spectral_param.parametrization.together import running


@pytest.fixture
def evaluations(monkeypatch):
    """How often a W was built on its own."""
    count = []
    forward = SVDParametrization.forward
    monkeypatch.setattr(
        SVDParametrization, "forward", lambda self, *f, **w: (count.append(1), forward(self, *f, **w))[1]
    )
    return count


def network(depth=4, dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    layers = []
    for _ in range(depth):
        layer = register_svd_parametrization(nn.Linear(6, 6, dtype=dtype), init="orthogonal", **kwargs)
        layers += [layer, nn.Tanh()]
    return nn.Sequential(*layers)


def outcome(model, x, around):
    model.zero_grad()
    if around:
        with together(model):
            y = model(x)
    else:
        y = model(x)
    y.square().sum().backward()
    return y, [p.grad for p in model.parameters()]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"reflectors": 2},
        {"reflectors": 6},
        {"reflectors": (2, 0)},
        {"reflectors": 2, "sigma": Band(0.2)},
        {"reflectors": 3, "train": "reflectors"},
        {"reflectors": 3, "matrix_free": True},
    ],
)
def test_same_as_layer_by_layer(evaluations, kwargs):
    model, x = network(**kwargs), torch.randn(3, 6, dtype=torch.float64)
    want = outcome(model, x, around=False)
    evaluations.clear()
    got = outcome(model, x, around=True)
    assert not evaluations
    torch.testing.assert_close(got, want)


def test_what_cannot_be_batched_is_evaluated_as_ever(evaluations):
    model, x = network(2, reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    model.append(register_svd_parametrization(nn.Linear(6, 4).double()))
    model.append(register_svd_parametrization(nn.Linear(4, 6).double(), chunks=2))
    model.append(register_svd_parametrization(nn.Linear(6, 6).double(), train="sigma"))
    want = outcome(model, x, around=False)
    evaluations.clear()
    torch.testing.assert_close(outcome(model, x, around=True), want)
    assert len(evaluations) == 3


def test_hooks_hear_their_weight():
    model, heard = network(reflectors=2), []
    model[0].parametrizations.weight[0].register_forward_hook(lambda module, args, weight: heard.append(weight))
    with together(model):
        model(torch.randn(3, 6, dtype=torch.float64))
    assert len(heard) == 1


def test_unused_layers_get_no_gradient():
    model, x = network(reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    with together(model):
        y = model[2](model[0](x))
    y.sum().backward()
    used = [model[0], model[2]]
    assert all(p.grad is not None for layer in used for p in layer.parameters())
    assert all(p.grad is None for layer in (model[4], model[6]) for p in layer.parameters())
    got = [p.grad.clone() for layer in used for p in layer.parameters()]
    model.zero_grad()
    model[2](model[0](x)).sum().backward()
    torch.testing.assert_close(got, [p.grad for layer in used for p in layer.parameters()])


def test_double_backward():
    model, x = network(2, reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    factors = list(model.parameters())

    def second(around):
        if around:
            with together(model):
                loss = model(x).square().sum()
        else:
            loss = model(x).square().sum()
        first = torch.autograd.grad(loss, factors, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), factors)

    torch.testing.assert_close(second(True), second(False))


def test_copies_within_and_errors_leave_nothing_behind():
    model, x = network(reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    with together(model):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for p in twin.parameters():
                p.add_(torch.randn_like(p))
        assert not torch.equal(model(x), twin(x))
    with pytest.raises(RuntimeError), together(model):
        model(torch.randn(3, 5, dtype=torch.float64))
    assert not nn.utils.parametrize._cache
    assert not nn.utils.parametrize._cache_enabled


def test_functional_call_and_autocast():
    model, x = network(reflectors=2, dtype=torch.float32), torch.randn(3, 6)
    other = {name: p.detach() * 2 for name, p in network(reflectors=2, dtype=torch.float32).named_parameters()}

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            with together(self):
                return self.model(x)

    names = {f"model.{name}": p for name, p in other.items()}
    got = torch.func.functional_call(Step(), names, (x,))
    torch.testing.assert_close(got, torch.func.functional_call(model, other, (x,)))
    with torch.autocast("cpu", torch.bfloat16), together(model):
        torch.testing.assert_close(model[0].weight, network(reflectors=2, dtype=torch.float32)[0].weight)
        assert model(x).dtype == torch.bfloat16


class Shifted(SigmaMap):
    """A map of the user's own: with a list, of a mood, or deaf to its numbers."""

    low, high = -float("inf"), float("inf")

    def __init__(self, deaf=False):
        super().__init__()
        self.levels = [0.5]
        self.deaf = deaf

    def forward(self, raw):
        return (raw.detach() if self.deaf else raw) + self.levels[0] * (1 if self.training else 3)

    def inverse(self, sigma):
        return sigma - self.levels[0]


@pytest.mark.parametrize("deaf", [False, True])
def test_maps_of_the_users_own(deaf):
    model, x = network(3, reflectors=2, sigma=Shifted(deaf)), torch.randn(3, 6, dtype=torch.float64)
    model[2].eval()
    torch.testing.assert_close(outcome(model, x, around=True), outcome(model, x, around=False))


def test_a_backward_hook_on_a_map_hears_its_own():
    model, x = network(3, reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    sigma_map = model[2].parametrizations.weight[0].sigma_map
    sigma_map.register_full_backward_hook(lambda module, into, out: (into[0] * 2,))
    torch.testing.assert_close(outcome(model, x, around=True), outcome(model, x, around=False))


def test_inference_mode():
    model, x = network(3, reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    with torch.inference_mode(), together(model):
        y = model(x)
    torch.testing.assert_close(y, model(x))


def test_maps_that_differ_in_a_number_alone_build_their_own_weights():
    """A band around 1 and one around 4 are of one class, and no more."""
    near, far = network(2, reflectors=2, sigma=Band(0.1)), network(2, reflectors=2, sigma=Band(0.1, center=4.0))
    with together(model := nn.Sequential(*near, *far)):
        for layer, center in ((near[0], 1.0), (near[2], 1.0), (far[0], 4.0), (far[2], 4.0)):
            values = torch.linalg.svdvals(layer.weight)
            torch.testing.assert_close(values, torch.full_like(values, center))
    x = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(outcome(model, x, around=True), outcome(model, x, around=False))


@pytest.mark.parametrize("frozen", [0, 2, 4])  # whichever comes first
def test_freezing_a_part_of_one_layer_freezes_no_other(frozen):
    model, x = network(3, reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    model[frozen].parametrizations.weight[0].raw_sigma.requires_grad_(False)
    _, got = outcome(model, x, around=True)
    _, want = outcome(model, x, around=False)
    assert [g is None for g in got].count(True) == 1
    torch.testing.assert_close(got, want)


# ------------------------------------------------------------------------------------------------- who else is at work


def loss_of(model, x):
    return lambda factors: functional_call(model, factors, (x,)).square().sum()


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # torch's own, of its jvp
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_factors_that_are_handed_in_are_the_ones_used():
    model, x = network(reflectors=2, sigma=Band(0.3)), torch.randn(3, 6, dtype=torch.float64)
    factors = {name: (1.1 * p.detach()).requires_grad_() for name, p in model.named_parameters()}
    loss, plain = loss_of(model, x), {name: p.detach() for name, p in factors.items()}
    stacked = {name: torch.stack([p, 0.9 * p]) for name, p in plain.items()}
    calls = {
        "functional_call": lambda: torch.autograd.grad(loss(factors), list(factors.values())),
        "grad": lambda: grad(loss)(plain),
        "jvp": lambda: jvp(loss, (plain,), (plain,)),
        "vmap": lambda: vmap(loss)(stacked),
    }
    for call in calls.values():
        want = call()
        with together(model):
            torch.testing.assert_close(call(), want)


def test_a_forward_without_gradients_hides_none_of_the_next():
    model, x = network(reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    model.append(register_svd_parametrization(nn.Linear(6, 4).double()))  # that has no equal
    want = outcome(model, x, around=False)
    model.zero_grad()
    with together(model):
        with torch.no_grad():
            model(x)
        y = model(x)
    y.square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want[1])
    model.zero_grad()
    with torch.no_grad(), together(model), torch.enable_grad():
        model(x).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want[1])


def test_threads_have_weights_of_their_own():
    model, x, errors = network(reflectors=2), torch.randn(3, 6, dtype=torch.float64), []
    want = model(x).detach()

    def step():
        try:
            for _ in range(20):
                with together(model):
                    y = model(x)
                torch.autograd.grad(y.square().sum(), list(model.parameters()))
                torch.testing.assert_close(y, want)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("parts", [[0], [2], [0, 4], [0, 2, 4, 6]])
@pytest.mark.parametrize("within", [True, False])
def test_parts_may_be_checkpointed(reentrant, parts, within):
    model = network(reflectors=2)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    want = outcome(model, x, around=False)
    model.zero_grad()

    def run():
        y = x
        for i, layer in enumerate(model):
            y = checkpoint(layer, y, use_reentrant=reentrant) if i in parts else layer(y)
        return y

    with together(model):
        y = run()
        if within:
            y.square().sum().backward()
    if not within:
        y.square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], want[1])


@pytest.fixture
def thin(monkeypatch):
    """Has small layers too take the thin factors of their weights."""
    monkeypatch.setattr("spectral_param.parametrization.together.spares_equal_weights", lambda sizes, vectors: True)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"reflectors": 2},
        {"reflectors": (1, 3)},
        {"reflectors": 2, "sigma": Band(0.2)},
        {"reflectors": 2, "sigma": Fixed(1.5)},
        {"reflectors": 2, "train": "reflectors"},
        {"reflectors": 2, "matrix_free": True},
    ],
)
def test_thin_factors_give_the_same_as_layer_by_layer(thin, evaluations, kwargs):
    model, x = network(**kwargs), torch.randn(2, 3, 6, dtype=torch.float64)
    want = outcome(model, x, around=False)
    evaluations.clear()
    torch.testing.assert_close(outcome(model, x, around=True), want)
    assert not evaluations
    with together(model):
        model(x)
        assert all(kept.thin and not kept.weights for kept in running.store.values())


def test_thin_factors_of_weights_that_are_not_square(thin):
    torch.manual_seed(0)
    layers = [nn.Linear(n, p).double() for n, p in ((8, 5), (5, 8), (8, 5), (5, 8))]
    model = nn.Sequential(*(register_svd_parametrization(one, reflectors=2, init="orthogonal") for one in layers))
    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(outcome(model, x, around=True), outcome(model, x, around=False))


def test_layers_without_thin_factors_have_w_beside_those_that_take_them(thin):
    model, x = network(reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    model[2].parametrizations.weight[0].matrix_free = False
    want = outcome(model, x, around=False)
    torch.testing.assert_close(outcome(model, x, around=True), want)
    with together(model):
        torch.testing.assert_close(model[0].weight @ x.mT + model[0].bias[:, None], model[0](x).mT)


def test_thin_factors_unused_get_no_gradient_and_are_differentiated_twice(thin):
    model, x = network(3, reflectors=2), torch.randn(3, 6, dtype=torch.float64)
    with together(model):
        model[2](model[0](x)).sum().backward()
    assert all(
        (p.grad is None) == (layer is model[4]) for layer in (model[0], model[2], model[4]) for p in layer.parameters()
    )
    factors = [p for layer in (model[0], model[2]) for p in layer.parameters()]

    def second(around):
        with together(model) if around else nullcontext():
            loss = model[2](model[0](x)).square().sum()
        first = torch.autograd.grad(loss, factors, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), factors, allow_unused=True)

    torch.testing.assert_close(second(True), second(False))


def test_the_thin_way_is_taken_where_it_is_less_work():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(register_svd_parametrization(nn.Linear(192, 192), reflectors=8, init="orthogonal") for _ in range(2))
    )
    for vectors, way in ((512, "thin"), (16, "weights")):
        x = torch.randn(vectors, 192)
        with together(model):
            y = model(x)
            assert all(getattr(kept, way) for kept in running.store.values())
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)
