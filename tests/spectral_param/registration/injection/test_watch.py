import copy
import gc
import pickle
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization, remove_svd_parametrization
from spectral_param.registration.injection.watch import handed_out


def layer(**kwargs):
    return register_svd_parametrization(nn.Linear(6, 6), **kwargs)


def set_data(module):
    module.weight.data = torch.ones(6, 6)


def reorder_through_data(module):
    module.weight.data.copy_(module.weight.detach().flip(0))


def init(module):
    nn.init.xavier_uniform_(module.weight)


def through_a_view(module):
    module.weight.data.T[1:].normal_()


def through_numpy(module):
    module.weight.detach().numpy()[0] = 3


def in_inference_mode(module):
    with torch.inference_mode():
        module.weight.zero_()


WRITES = [set_data, reorder_through_data, init, through_a_view, through_numpy, in_inference_mode]
USES = {
    "a forward": lambda m: m(torch.ones(2, 6)),
    "a read": lambda m: m.weight,
    "its state": lambda m: m.state_dict(),
    "the state of a model": lambda m: nn.Sequential(m).state_dict(),
    "removal": remove_svd_parametrization,
    "a copy": copy.deepcopy,
    "a pickle": pickle.dumps,
    "a step": lambda m: torch.optim.SGD(m.parameters(), lr=0.1).step(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_write_is_told_wherever_the_weight_counts(write, use):
    module = layer()
    write(module)
    with pytest.warns(UserWarning, match=r"(Linear|0).weight: was changed in place .* assign to it instead") as told:
        use(module)
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_write_is_told_once_for_each_layer_by_its_name():
    model = nn.Sequential(*(layer() for _ in range(3)), nn.Sequential(layer()))
    model.apply(lambda module: init(module) if isinstance(module, nn.Linear) else None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            model(torch.ones(1, 6))
    names = [str(warning.message).partition(":")[0] for warning in told]
    assert names == ["0.weight", "1.weight", "2.weight", "3.0.weight"]


def test_a_write_has_no_effect():
    module = layer()
    before = module.weight.detach().clone()
    set_data(module)
    with pytest.warns(UserWarning, match="no effect"):
        after = module.weight
    assert torch.equal(after, before)


@pytest.mark.parametrize("frozen", [True, False])
def test_setting_requires_grad_is_told_with_the_remedy(frozen):
    module = layer().requires_grad_(not frozen)
    with torch.no_grad():
        module.weight.requires_grad = True
    remedy = r"set it on its factors: Linear.parametrizations.weight.requires_grad_\(\)"
    with pytest.warns(UserWarning, match=f"requires_grad was set .* {remedy}"):
        module(torch.ones(1, 6))


@pytest.mark.parametrize("kwargs", [{}, {"reflectors": 2, "init": "orthogonal"}, {"chunks": 2}, {"train": "sigma"}])
def test_a_weight_that_was_let_go_unchanged_is_watched_no_more(kwargs):
    module = layer(**kwargs)
    reference = weakref.ref(module.weight)
    module(torch.ones(1, 6))
    assert reference() is None
    for _ in range(5):
        module.weight  # noqa: B018
    assert len(handed_out[module.parametrizations.weight]) == 1
    held = module.weight
    module(torch.ones(1, 6))
    assert [one.weight is held for one in handed_out[module.parametrizations.weight]] == [True]


def test_a_weight_of_cached_is_watched_once():
    module = layer()
    with nn.utils.parametrize.cached():
        for _ in range(3):
            module.weight  # noqa: B018
    module(torch.ones(1, 6))
    assert module.parametrizations.weight not in handed_out


def test_watching_keeps_no_module():
    module = layer()
    weight = module.weight
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None
    assert weight.shape == (6, 6)


def test_a_model_whose_weight_is_watched_is_copied():
    module = layer()
    weight = module.weight
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin.weight, weight)


def test_threads_read_side_by_side():
    module, errors = layer(), []

    def read():
        try:
            for _ in range(50):
                kept = module.weight
                module(torch.ones(1, 6))
                layer().weight  # noqa: B018
                torch.optim.SGD(module.parameters(), lr=0.0).step()
                module.state_dict()
                del kept
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:FutureWarning", "ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # of sizes, which are the weight's
@pytest.mark.parametrize(
    ("build", "shape"), [(lambda: nn.Linear(4, 3), (2, 4)), (lambda: nn.Conv2d(2, 3, 3), (2, 2, 5, 5))]
)
def test_a_tracer_with_gradients_does_not_see_the_watch(build, shape):
    """It reads every attribute beforehand, so that the weight is handed out when the forward begins."""
    layer = register_svd_parametrization(build())
    traced = torch.jit.trace(layer, torch.randn(shape))
    x = torch.randn(shape)
    torch.testing.assert_close(traced(x), layer(x))
    found, expected = (torch.autograd.grad(net(x).square().sum(), [*layer.parameters()]) for net in (traced, layer))
    torch.testing.assert_close(found, expected)
