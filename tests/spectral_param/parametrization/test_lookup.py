"""Names of weights: the same from every function that gives them, whatever wraps the model."""

import contextlib
import inspect

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import spectral_param
from spectral_param import register_all, register_svd_parametrization, spectral_table, svd_parametrizations
from spectral_param.bounds import lipschitz_bound
from spectral_param.spectrum.patterns import owner_of, parametrized_weights, plain_weights


def model():
    net = nn.ModuleDict({"module": nn.Linear(3, 3), "other": nn.Linear(3, 3)})
    return nn.ModuleDict({"module": net, "plain": nn.Linear(3, 2)})  # names that wrappers use, and that are the user's


WRAPPERS = {
    "nothing": lambda module: module,
    "checkpoint_wrapper": checkpoint_wrapper,
    "compile": lambda module: torch.compile(module, backend="eager"),
    "fabric": lambda module: Fabric(accelerator="cpu").setup(module),
    "data_parallel": nn.DataParallel,
    "averaged_model": AveragedModel,
}
IN_GROUP = {
    "ddp": DistributedDataParallel,
    "fsdp": lambda module: FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=True),
    "ddp of a compiled one": lambda module: DistributedDataParallel(torch.compile(module, backend="eager")),
}
EXPECTED = ["module.module.weight", "module.other.weight"]


def names_of(wrap):
    """Names that each function gives, once with the whole model wrapped and once with parts of it."""
    whole, parts = model(), model()
    for net in (whole, parts):
        for layer in net["module"].values():
            register_svd_parametrization(layer)
    whole = wrap(whole)
    parts["module"]["module"], parts["plain"] = wrap(parts["module"]["module"]), wrap(parts["plain"])
    for wrapped in (whole, parts):
        yield [name for name, _ in svd_parametrizations(wrapped)]
        if wrap is not IN_GROUP["fsdp"]:  # whose flat shards have no σ
            yield [row["weight"] for row in spectral_table(wrapped)]
        yield list(parametrized_weights(wrapped, ["module.*"]))
        for name in parametrized_weights(wrapped, ["*"]):
            owner, tensor_name = owner_of(wrapped, name)
            assert isinstance(owner, nn.Linear)
            assert tensor_name == "weight"


def plain_names_of(wrap):
    """Names that registering gives to weights of a model that is wrapped already."""
    wrapped = wrap(model())
    found = [list(plain_weights(wrapped, ["*"]))]
    report = register_all(wrapped, where=lambda name, module: name.startswith("module."))
    return [*found, [*report.taken, "plain.weight"], [*report.passed_over, *report.taken]]


@pytest.mark.parametrize("kind", WRAPPERS)
def test_every_function_gives_a_weight_the_name_that_it_has_without_a_wrapper(kind):
    assert all(names == EXPECTED for names in names_of(WRAPPERS[kind]))


@pytest.mark.parametrize("kind", WRAPPERS)
def test_registering_a_wrapped_model_names_weights_as_without_a_wrapper(kind):
    plain, taken, all_names = plain_names_of(WRAPPERS[kind])
    assert plain == taken == [*EXPECTED, "plain.weight"]
    biases = {name.replace("weight", "bias") for name in plain}
    assert set(all_names) == biases | set(plain)


def _names_on_a_rank(rank, kind):
    return list(names_of(IN_GROUP[kind]))


@pytest.mark.parametrize("kind", IN_GROUP)
def test_every_function_gives_a_weight_its_name_in_a_process_group(two_processes, kind):
    for names in two_processes(_names_on_a_rank, kind):
        assert len(names) >= 4
        assert all(found == EXPECTED for found in names)


PUBLIC = [*(getattr(spectral_param, name) for name in spectral_param.__all__), lipschitz_bound]
OF_MODULES = {
    function.__name__: (function, argument)
    for function in PUBLIC
    for argument in ("module", "model")
    if argument in inspect.signature(function).parameters
}
BESIDE = {"max": 1.0, "b": torch.ones(2), "path": "", "adapter": {}, "state": {}, "optimizer": None}


@pytest.mark.parametrize("name", OF_MODULES)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.ones(2, 2), "Tensor; give the module that holds it, or take torch.linalg.svdvals of the tensor"),
        (nn.Linear(2, 2).parameters(), "generator; give the model itself, not its parameters"),
        ("fc", "str"),
    ],
    ids=["tensor", "parameters", "string"],
)
def test_what_is_no_module_is_named_by_every_function_that_takes_one(name, given, said):
    function, argument = OF_MODULES[name]
    needed = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    others = {key: BESIDE[key] for key in needed if key in BESIDE}

    def call():
        found = function(**{argument: given}, **others)
        with found if isinstance(found, contextlib.AbstractContextManager) else contextlib.nullcontext():
            list(found)

    with pytest.raises(TypeError, match=rf"^{argument}: expected a torch.nn.Module, got {said}\.$"):
        call()


def test_most_functions_take_a_module():
    assert len(OF_MODULES) > 25
