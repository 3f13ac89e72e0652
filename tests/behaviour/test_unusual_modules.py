"""Modules with habits of their own: custom copying, other names for resetting, parametrizations beside and on top."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from spectral_param import (
    clip_singular_values_,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    svd_parametrizations,
)
from spectral_param.parametrization.lookup import qualified_name
from tests.reference import relative


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight

    def right_inverse(self, weight):
        return weight / 2


class NoInverse(nn.Module):
    def forward(self, weight):
        return weight.tril()


def layer(**kwargs):
    return register_svd_parametrization(nn.Linear(4, 4), **kwargs)


def doubled():
    return parametrize.register_parametrization(layer(), "weight", Double())


def assign(module, weight):
    module.weight = weight


def assign_parameter(module, weight):
    module.weight = nn.Parameter(weight)


def load(module, weight):
    module.load_state_dict({"weight": weight, "bias": torch.zeros(4)})


@pytest.mark.parametrize("make", [layer, doubled])
@pytest.mark.parametrize("write", [assign, assign_parameter, load])
def test_a_weight_is_met_through_whatever_is_on_top(make, write):
    module, weight = make(), torch.randn(4, 4)
    factors = next(svd_parametrizations(module))[1].factors
    write(module, weight)
    assert relative(module.weight, weight) < 1e-6
    assert all(a is b for a, b in zip(next(svd_parametrizations(module))[1].factors, factors, strict=True))


def test_resetting_goes_through_what_is_on_top():
    module = doubled()
    module.reset_parameters()
    assert 0 < module.weight.abs().max() <= 0.5 + 1e-6


def test_what_has_no_inverse_cannot_be_assigned_through():
    module = layer()
    parametrize.register_parametrization(module, "weight", NoInverse())
    before = module.weight.detach().clone()
    with pytest.raises(ValueError, match="NoInverse, registered on top, has no right_inverse"):
        module.weight = torch.eye(4)
    assert torch.equal(module.weight, before)


def test_another_parametrization_beside_ours_survives_copies():
    module = layer()
    parametrize.register_parametrization(module, "bias", Double())
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        twin.bias = torch.ones(4)
        assert torch.equal(twin.bias, torch.ones(4))
        assert not torch.equal(module.bias, torch.ones(4))


class Locked(nn.Linear):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "lock"}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.lock = threading.Lock()


class LockedLSTM(nn.LSTM):
    def __getstate__(self):
        return super().__getstate__() | {"pickled": True}


class CopiesItself(nn.Linear):
    def __deepcopy__(self, memo):
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        return twin


@pytest.mark.parametrize("kind", [Locked, CopiesItself])
def test_custom_copies_are_whole_and_independent(kind):
    module = register_svd_parametrization(kind(4, 4))
    x = torch.randn(2, 4)
    want = module(x)
    twin = copy.deepcopy(module)
    assert torch.equal(twin(x), want)
    remove_svd_parametrization(twin)
    assert type(twin) is kind
    assert torch.equal(module(x), want)
    assert module.weight.shape == (4, 4)
    remove_svd_parametrization(module)


def test_the_state_of_a_recurrent_subclass_is_its_own():
    module = LockedLSTM(3, 4)
    register_svd_parametrization(module, "weight_hh_l0", chunks=4)
    x = torch.randn(5, 2, 3)
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert twin.pickled
        assert torch.equal(twin(x)[0], module(x)[0])
        parametrize.remove_parametrizations(twin, "weight_hh_l0")
        torch.testing.assert_close(twin(x)[0], module(x)[0])


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_threads_call_one_recurrent_module(kind):
    module = kind(8, 8)
    register_svd_parametrization(module, "weight_hh_l0", chunks=3 if kind is nn.GRU else 4)
    x, results = torch.randn(3, 2, 8), []
    want = module(x)[0]

    def work():
        try:
            results.extend(torch.equal(module(x)[0], want) for _ in range(100))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 400


class Checkpointed(nn.Linear):
    def forward(self, x):
        def step(z):
            return torch.tanh(z @ self.weight.mT)

        return checkpoint(step, checkpoint(step, x, use_reentrant=False), use_reentrant=False)


class ClipsItself(nn.Linear):
    def forward(self, x):
        before = self.weight.norm()
        clip_singular_values_(self, 0, 0.01)
        return before, torch.linalg.matrix_norm(self.weight, 2)


class GoesBackTwice(nn.Linear):
    def forward(self, x):
        for _ in range(2):
            (x @ self.weight.mT).sum().backward()


def test_a_forward_reads_its_weight_as_it_stands():
    register_svd_parametrization(Checkpointed(4, 4))(torch.randn(2, 4)).sum().backward()
    _, after = register_svd_parametrization(ClipsItself(4, 4))(torch.randn(2, 4))
    assert after <= 0.01 + 1e-6
    register_svd_parametrization(GoesBackTwice(4, 4))(torch.randn(2, 4))


def test_attention_resets_in_its_own_way():
    attention = nn.MultiheadAttention(8, 2)
    register_svd_parametrization(attention, "in_proj_weight", chunks=3)
    before = attention.in_proj_weight.detach().clone()
    attention._reset_parameters()
    bound = (6 / (8 + 24)) ** 0.5
    assert not torch.equal(attention.in_proj_weight, before)
    assert attention.in_proj_weight.abs().max() <= bound + 1e-6


class NeedsAnArgument(nn.Linear):
    def __init_subclass__(cls, *, tag):
        super().__init_subclass__()


def test_a_class_that_torch_cannot_extend_keeps_its_weight():
    module = NeedsAnArgument(4, 4)
    before = dict(module.named_parameters())
    with pytest.raises(TypeError):
        register_svd_parametrization(module)
    assert dict(module.named_parameters()).keys() == before.keys()
    assert module.weight is before["weight"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_checkpoint_of_another_dtype_is_assigned_whole(dtype):
    x = torch.randn(2, 4, dtype=dtype)
    for source in (nn.Linear(4, 4, dtype=dtype), layer().to(dtype)):
        module = layer()
        module.load_state_dict(source.state_dict(), assign=True)
        assert module.weight.dtype == dtype
        torch.testing.assert_close(module(x), source(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("dtype", "huge"), [(torch.float32, 3e38), (torch.float64, 1.7e308)])
def test_a_weight_whose_norm_overflows_is_refused(dtype, huge):
    module = nn.Linear(64, 64, dtype=dtype)
    module.weight.data.fill_(huge)
    with pytest.raises(ValueError, match="singular values are too large"):
        register_svd_parametrization(module)
    assert type(module) is nn.Linear


@pytest.mark.parametrize("value", [torch.ones(4, 4, dtype=torch.int64), torch.ones(4, 4, dtype=torch.complex64)])
def test_only_real_floating_weights_are_assigned(value):
    with pytest.raises(TypeError, match="^weight: expected a real floating dtype"):
        layer().weight = value


def test_a_default_device_elsewhere_is_no_matter():
    module = nn.Linear(4, 4)
    nn.init.orthogonal_(module.weight)
    with torch.device("meta"):
        register_svd_parametrization(module, reflectors=(4, 0))
        other = nn.Linear(4, 4, device="cpu")
        register_svd_parametrization(other, reflectors=2, init="orthogonal")
    assert module.weight.device.type == other.weight.device.type == "cpu"


def test_names_that_only_end_like_torchs():
    assert qualified_name("my_parametrizations.0.parametrizations.weight") == "my_parametrizations.0.weight"


@pytest.mark.parametrize("train", ["all", "sigma"])
def test_frozen_models_compile_to_one_graph(train):
    module = layer(train=train)
    if train == "all":
        module.requires_grad_(False)
    x = torch.randn(2, 4)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(x), module(x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode calls it
def test_tracing_sees_plain_operations():
    from spectral_param.nn import SpectralRNN

    rnn, x = SpectralRNN(3, 4), torch.randn(5, 2, 3, requires_grad=True)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones(5, 2, 3))
        tangent = torch.autograd.forward_ad.unpack_dual(rnn(dual)[0]).tangent
    eps = 1e-3
    slope = (rnn(x + eps)[0] - rnn(x - eps)[0]) / (2 * eps)
    torch.testing.assert_close(tangent, slope, rtol=1e-2, atol=1e-3)


def no_grad_products(module):
    with torch.no_grad():
        module.weight.copy_(module.weight * torch.eye(4))


def no_grad_difference(module):
    with torch.no_grad():
        module.weight.sub_(0.1 * module.weight)


def data_of_data(module):
    module.weight.data.copy_(module.weight.data / 2)


def data_replaced(module):
    with torch.no_grad():
        module.weight.data = torch.eye(4)


def a_write_after_another_read(module):
    weight = module.weight
    module.weight.norm()
    with torch.no_grad():
        weight.zero_()


@pytest.mark.parametrize(
    "write", [no_grad_products, no_grad_difference, data_of_data, data_replaced, a_write_after_another_read]
)
def test_writes_that_read_as_well_are_not_silent(write):
    module = layer()
    write(module)
    with pytest.warns(UserWarning, match="changed in place"):
        module(torch.randn(1, 4))
    singular_values(module)


@pytest.mark.parametrize("shape", [(1, 8), (3, 8), (2, 3, 8), (8,)])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_may_be_changed_in_place(shape, bias):
    plain = nn.Linear(8, 4, bias=bias)
    module = register_svd_parametrization(copy.deepcopy(plain), matrix_free=True)
    x = torch.randn(shape)
    for layer in (plain, module):
        nn.functional.relu_(layer(x)).sum().backward()
    torch.testing.assert_close(nn.functional.relu_(module(x)), nn.functional.relu_(plain(x)), rtol=1e-4, atol=1e-5)


def test_inputs_that_are_no_plain_tensors():
    module = layer()
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)
    assert module(nested).shape[-1] == 4
    torch.testing.assert_close(module(torch.eye(4).to_sparse()), module(torch.eye(4)), rtol=1e-4, atol=1e-5)
    x = torch.randn(2, 4)
    torch.testing.assert_close(torch.fx.symbolic_trace(module)(x), module(x), rtol=1e-4, atol=1e-5)
