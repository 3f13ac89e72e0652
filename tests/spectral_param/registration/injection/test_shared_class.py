"""Registered modules share the class that their plain ones shared, and nothing that one of them undergoes."""

import abc
import copy
import gc
import pickle
import weakref

import lightning
import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from spectral_param import register_svd_parametrization, remove_svd_parametrization


def layer(p=4, q=5):
    return register_svd_parametrization(nn.Linear(q, p))


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def test_equal_modules_share_a_class():
    a, b = layer(), layer(3, 3)
    assert type(a) is type(b) is not nn.Linear
    assert type(a) is type(copy.deepcopy(a)) is type(pickle.loads(pickle.dumps(a))) is type(copy.copy(a))
    assert type(a) is not type(register_svd_parametrization(nn.Conv2d(2, 2, 2)))
    cells = [register_svd_parametrization(nn.RNNCell(3, 3), name) for name in ("weight_ih", "weight_hh", "weight_hh")]
    assert type(cells[0]) is not type(cells[1]) is type(cells[2])


@pytest.mark.parametrize("remove", [remove_svd_parametrization, lambda m: remove_parametrizations(m, "weight")])
def test_removal_from_one_leaves_the_others(remove):
    a, b, x = layer(), layer(), torch.randn(2, 5)
    twin, shared, want = copy.deepcopy(a), type(b), b(x)
    remove(a)
    assert type(a) is nn.Linear
    assert type(b) is type(twin) is type(layer()) is shared
    assert torch.equal(b(x), want)
    assert torch.equal(b.weight, copy.deepcopy(b).weight)
    torch.testing.assert_close(twin(x), a(x), rtol=1e-4, atol=1e-5)
    b.weight = a.weight.detach()
    torch.testing.assert_close(b.weight, a.weight)
    remove(twin)
    remove(b)
    assert type(b) is type(twin) is nn.Linear
    assert isinstance(b.weight, nn.Parameter)


def test_a_removal_of_one_of_two_weights_leaves_it_with_those_that_have_the_other_alone():
    both, one = nn.LSTMCell(3, 4), register_svd_parametrization(nn.LSTMCell(3, 4), "weight_hh")
    register_svd_parametrization(both, "weight_ih")
    register_svd_parametrization(both, "weight_hh")
    assert type(both) is not type(one)
    remove_svd_parametrization(both, "weight_ih")
    assert type(both) is type(one)


def test_registered_layers_are_stacked():
    layers, x = [layer() for _ in range(3)], torch.randn(2, 5)
    parameters, buffers = stack_module_state(layers)
    got = vmap(lambda p, b: functional_call(layers[0], (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(got, torch.stack([one(x) for one in layers]), rtol=1e-4, atol=1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # dynamo's, for plain ones too
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_twelve_blocks_compile_to_one_graph(backend):
    blocks = nn.Sequential(*(Block() for _ in range(12)))
    for block in blocks:
        register_svd_parametrization(block.linear)
    x = torch.randn(3, 6, requires_grad=True)  # as what one block hands to the next
    want = blocks(x)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    for block in blocks:
        block.compile(backend=counter, fullgraph=True)
    torch.testing.assert_close(blocks(x), want, rtol=1e-4, atol=1e-5)
    blocks(x).sum().backward()
    assert counter.frame_count == 1
    assert all(p.grad is not None for p in blocks.parameters())
    torch._dynamo.reset()


# ------------------------------------------------------------------------------------------------------ its lifetime


def test_a_class_that_nobody_uses_is_freed():
    def make():
        class Local(nn.Linear):
            pass

        module = register_svd_parametrization(Local(3, 3))
        module(torch.randn(2, 3)).sum().backward()
        return weakref.ref(Local), weakref.ref(type(module)), remove_svd_parametrization(module)

    plain, shared, module = make()
    gc.collect()
    assert plain() is type(module)
    assert shared() is None
    del module
    gc.collect()
    assert plain() is None


def test_a_class_stays_as_it_is_for_a_sibling_of_one_parametrized_further():
    a, b = layer(), layer()
    members = set(vars(type(b)))
    register_parametrization(a, "bias", Doubled())
    remove_parametrizations(a, "weight")
    assert set(vars(type(b))) >= members
    assert isinstance(b.bias, nn.Parameter)
    b.bias = nn.Parameter(torch.ones(4))
    assert b.bias is b._parameters["bias"]
    del b.bias
    with pytest.raises(AttributeError, match="bias"):
        b.bias  # noqa: B018
    for value in (None, torch.ones(4)):  # attributes of no kind of torch's
        b.bias = value
        assert b.bias is value
        assert copy.deepcopy(b).bias is None if value is None else torch.equal(copy.deepcopy(b).bias, value)
        assert torch.equal(b(torch.zeros(1, 5))[0], torch.zeros(4) if value is None else value)
    del b.bias
    for missing in (b, a):
        with pytest.raises(AttributeError, match=r"bias"):
            del missing.bias
    assert not hasattr(b, "bias")
    with pytest.raises(AttributeError, match=r"weight: is computed"):
        del b.weight
    remove_svd_parametrization(b)
    b.bias = None
    b(torch.zeros(1, 5))


# ------------------------------------------------------------------------------------------- classes of users' own


class Abstract(nn.Linear, abc.ABC):
    @abc.abstractmethod
    def name(self): ...


class Concrete(Abstract):
    def name(self):
        return "concrete"


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.made_by = "Meta"
        return made

    def __setattr__(cls, name, value):
        super().__setattr__(name, value)


class WithMeta(nn.Linear, metaclass=Meta):
    pass


class Task(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        return x @ self.weight.mT


class Slotted(nn.Linear):
    __slots__ = ("note",)

    def __init__(self, *args):
        super().__init__(*args)
        self.note = "kept"


class Watchful(nn.Linear):
    def __setattr__(self, name, value):
        vars(self).setdefault("seen", []).append(name)
        super().__setattr__(name, value)

    def __getattr__(self, name):
        return 7 if name == "seven" else super().__getattr__(name)

    def __delattr__(self, name):
        super().__delattr__(name)


MAKE = {
    "abstract": lambda: Concrete(5, 4),
    "metaclass": lambda: WithMeta(5, 4),
    "lightning": Task,
    "slots": lambda: Slotted(5, 4),
    "setattr": lambda: Watchful(5, 4),
}


@pytest.mark.parametrize("kind", MAKE)
def test_classes_of_users_own(kind):
    plain = MAKE[kind]()
    base, x = type(plain), torch.randn(2, 5)
    want = plain(x)
    module = register_svd_parametrization(copy.deepcopy(plain))
    assert isinstance(module, base)
    shared = type(module)
    assert type(register_svd_parametrization(MAKE[kind]())) is shared
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module):
        torch.testing.assert_close(twin(x), want, rtol=1e-4, atol=1e-5)
        assert type(twin) is shared
        for name in ("made_by", "seven"):
            assert getattr(twin, name, None) == getattr(plain, name, None)
        if kind == "abstract":
            assert twin.name() == "concrete"
        if kind == "setattr":
            twin.weight = torch.eye(4, 5)
            assert twin.seen[-1] == "weight"
            torch.testing.assert_close(twin.weight, torch.eye(4, 5))
        assert type(remove_svd_parametrization(twin)) is base
        assert isinstance(twin.weight, nn.Parameter)
        register_svd_parametrization(twin)
        remove_parametrizations(twin, "weight")
        assert type(twin) is base


def test_slots_are_kept_by_the_module_and_lost_in_its_copies_as_torch_loses_them():
    plain = Slotted(5, 4)
    module = register_svd_parametrization(Slotted(5, 4))
    assert module.note == "kept"
    assert hasattr(copy.deepcopy(module), "note") == hasattr(copy.deepcopy(plain), "note")
    assert hasattr(pickle.loads(pickle.dumps(module)), "note") == hasattr(pickle.loads(pickle.dumps(plain)), "note")
    assert remove_svd_parametrization(module).note == "kept"


class Positional(nn.Linear):
    def __new__(cls, first, second):
        new = super().__new__(cls)
        new.given = (first, second)
        return new

    def __getnewargs__(self):
        return self.given


class Named(nn.Linear):
    def __new__(cls, *, size):
        new = super().__new__(cls)
        new.given = size
        return new

    def __init__(self, *, size):
        super().__init__(size, size)

    def __getnewargs_ex__(self):
        return (), {"size": self.given}


@pytest.mark.parametrize("make", [lambda: Positional(4, 4), lambda: Named(size=4)])
def test_a_class_with_a_new_of_its_own_arguments_is_copied(make):
    module = register_svd_parametrization(make())
    for twin in (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module))):
        assert twin.given == module.given
        assert torch.equal(twin.weight, module.weight)
