"""W is kept between reads in evaluation without gradients, and never a stale one."""

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn

from spectral_param import Band, SVDParametrization, clip_singular_values_, register_all, register_svd_parametrization
from spectral_param.parametrization.kept_weight import KeptWeight


@pytest.fixture
def built(monkeypatch):
    """How often a W was built."""
    count = []
    forward = SVDParametrization.forward
    monkeypatch.setattr(
        SVDParametrization, "forward", lambda self, *f, **w: (count.append(1), forward(self, *f, **w))[1]
    )
    return count


def layer(init="orthogonal", **kwargs):
    sigma = Band(0.5) if init == "orthogonal" else None
    return register_svd_parametrization(nn.Linear(6, 6), sigma=sigma, init=init, **kwargs).eval()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_weight_is_built_once_for_many_reads(built, mode):
    module = layer()
    with mode():
        for _ in range(5):
            module.weight  # noqa: B018
    assert len(built) == 1
    (module.weight * 2).sum().backward()  # which could not save a tensor of inference mode
    with torch.no_grad():
        module.weight  # noqa: B018
    assert len(built) == 3  # let go where there were gradients


@pytest.mark.parametrize("matrix_free", [None, True, False])
def test_a_forward_with_gradients_lets_go_of_what_was_kept(matrix_free):
    module = layer(matrix_free=matrix_free)
    with torch.no_grad():
        reference = weakref.ref(module.weight)
        module(torch.ones(1, 6))
    assert reference() is not None
    module(torch.ones(1, 6))
    module(torch.ones(1, 6))
    assert reference() is None


def test_a_parent_that_reads_the_weights_of_its_children_builds_each_once(built):
    plain = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    module = copy.deepcopy(plain)
    register_all(module)
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        built.clear()
        for _ in range(3):
            torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)
    assert len(built) == 4


def test_a_cell_without_gradients_builds_its_weights_once_for_a_sequence(built):
    plain = nn.LSTMCell(3, 4)
    cell = copy.deepcopy(plain)
    register_all(cell)
    built.clear()
    state = want = None
    with torch.no_grad():
        for x in torch.randn(10, 2, 3):
            state, want = cell(x, state), plain(x, want)
    torch.testing.assert_close(state, want, rtol=1e-4, atol=1e-5)
    assert len(built) == 2


def rewrite_through_data(module):
    module.parametrizations.weight.original0.data.copy_(torch.randn(21))


def reorder_through_data(module):
    factor = module.parametrizations.weight.original0
    factor.data.copy_(factor.detach().flip(0))


def write(module):
    module.parametrizations.weight.original1.add_(1)


def move(module):
    module.double()


def clip(module):
    clip_singular_values_(module, 0.5, 0.7)


def another_map(module):
    module.parametrizations.weight[0].sigma_map.radius = 0.1


def load(module):
    module.load_state_dict(layer().state_dict())


@pytest.mark.parametrize("change", [rewrite_through_data, reorder_through_data, write, move, clip, another_map, load])
def test_a_change_of_whatever_a_weight_is_built_from_is_seen(change):
    module = layer()
    with torch.no_grad():
        module.parametrizations.weight.original1.uniform_(-1, 1)
        module.weight  # noqa: B018
        change(module)
        twin = copy.deepcopy(module)
        torch.testing.assert_close(module.weight, twin.parametrizations.weight(), rtol=0, atol=0)


@pytest.mark.parametrize("change", [rewrite_through_data, write, clip, another_map, load, move])
def test_a_linear_layer_keeps_its_weight_in_evaluation_and_sees_a_change(built, change):
    module = layer()
    with torch.no_grad():
        module.parametrizations.weight.original1.uniform_(-1, 1)
        first = module(torch.eye(6))
        for _ in range(3):
            assert torch.equal(module(torch.eye(6)), first)
        assert len(built) == 1
        change(module)
        twin = copy.deepcopy(module)
        x = torch.eye(6, dtype=module.weight.dtype)
        assert torch.equal(module(x), nn.functional.linear(x, twin.parametrizations.weight(), twin.bias))


def follow(target, source):
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        ours.data.mul_(0.9)
        ours.data.add_(0.1 * theirs.data)


def swap_data(target, source):
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        ours.data, theirs.data = theirs.data, ours.data


def by_a_vector(target, source):
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(source.parameters()), target.parameters())


def in_shared_memory(target, source):
    target.share_memory()
    with torch.no_grad():
        target(torch.ones(1, 6))
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(follow, (target, source))


@pytest.mark.parametrize("writer", [follow, swap_data, by_a_vector, in_shared_memory])
def test_what_writes_to_a_model_that_is_evaluated_alone_is_seen(writer):
    target, source = (nn.Sequential(layer(init="weight"), layer(init="weight")) for _ in range(2))
    with torch.no_grad():
        for _ in range(3):
            before = target(torch.eye(6))
            writer(target, source)
            after = target(torch.eye(6))
            assert torch.equal(after, copy.deepcopy(target)(torch.eye(6)))
            assert not torch.equal(after, before) or writer is by_a_vector


def test_what_is_written_while_a_weight_is_built_is_seen_at_the_next_read():
    module = layer(init="weight")
    p, held = module.parametrizations.weight[0], module.parametrizations.weight

    def build():
        weight = held()
        p.raw_sigma.data.mul_(3)  # as another thread may
        return weight

    with torch.no_grad():
        p.kept_weight.weight(p, build)
        assert torch.equal(module.weight, held())


def test_what_is_written_while_a_weight_is_handed_out_again_is_seen_at_the_next_read(monkeypatch):
    module = layer(init="weight")
    p, held = module.parametrizations.weight[0], module.parametrizations.weight
    with torch.no_grad():
        module.weight.data.zero_()  # a reader's, so that it is handed out anew
        current = KeptWeight._current

        def written_after(self, parametrization):
            found = current(self, parametrization)
            p.raw_sigma.data.mul_(3)  # by another thread
            return found

        with monkeypatch.context() as patched:
            patched.setattr(KeptWeight, "_current", written_after)
            p.kept_weight.weight(p, held)
        assert torch.equal(p.kept_weight.weight(p, held), held())


def test_what_a_reader_does_to_a_weight_is_told_and_kept_from_the_next():
    module = layer()
    with torch.no_grad():
        before = module.weight.clone()
        module.weight.data.zero_()
        with pytest.warns(UserWarning, match="no effect"):
            assert torch.equal(module.weight, before)


def test_training_and_listening_keep_nothing(built):
    module = layer().train()
    with torch.no_grad():
        for _ in range(3):
            module.weight  # noqa: B018
        assert len(built) == 3
        module.eval().parametrizations.weight.register_forward_hook(lambda *_: None)
        for _ in range(3):
            module.weight  # noqa: B018
    assert len(built) == 6


def test_copies_and_pickles_begin_with_nothing_kept():
    p = layer().parametrizations.weight[0]
    kept = p.kept_weight
    kept.weight(p, lambda: torch.ones(3))
    for twin in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert vars(twin) == vars(KeptWeight())
