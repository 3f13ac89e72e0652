"""An optimizer that holds what nobody trains any more is told of at its step."""

import copy
import gc
import warnings

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spectral_param import add_factors_, register_all, register_svd_parametrization, remove_svd_parametrization


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


REMEDY = (
    r"SGD holds 0.weight, 2.weight from before registration, .* call spectral_param.add_factors_\(optimizer, model\)"
)


def test_an_optimizer_built_before_registration_is_told_once():
    net = model()
    optimizer = sgd(net)
    register_all(net)
    with pytest.warns(UserWarning, match=REMEDY) as told:
        step(net, optimizer)
    assert len(told) == 1
    step(net, optimizer)
    register_svd_parametrization(nn.Linear(2, 2))  # of no concern to it, yet looked at again
    with pytest.warns(UserWarning, match=REMEDY):
        step(net, optimizer)


def test_an_optimizer_with_the_factors_is_told_of_nothing():
    net = model()
    optimizer = sgd(net)
    register_all(net)
    step(net, add_factors_(optimizer, net))
    step(net, sgd(net))
    step(copy.deepcopy(net), optimizer)


def test_an_optimizer_built_before_folding_is_told():
    net = model()
    early = sgd(net)
    register_all(net)
    late = sgd(net)
    remove_svd_parametrization(net)
    gc.collect()
    for optimizer in (early, late):
        with pytest.warns(UserWarning, match="weight of Linear from before remove_svd_parametrization.* build it anew"):
            step(net, optimizer)
    step(net, sgd(net))


def test_registering_that_failed_is_told_of_to_nobody():
    net = model()
    optimizer = sgd(net)
    with torch.no_grad():
        net[2].weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"2.weight: .* finite"):
        register_all(net)
    with torch.no_grad():
        net[2].weight.zero_()
    step(net, optimizer)


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model()

    def configure_model(self):
        register_all(self.net)

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(4, 4)), batch_size=4)


QUIET = {
    "max_epochs": 1,
    "logger": False,
    "enable_checkpointing": False,
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_command_lines_optimizer_is_told_of_a_registration_in_configure_model():
    arguments = ["fit", "--optimizer=SGD", "--optimizer.lr=0.1"]
    arguments += [f"--trainer.{name}={str(value).lower()}" for name, value in QUIET.items()]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        LightningCLI(Module, save_config_callback=None, args=arguments)
    assert any("call spectral_param.add_factors_(optimizer, model)" in str(warning.message) for warning in told)


class Late(Callback):
    def on_train_start(self, trainer, pl_module):
        register_all(pl_module.net)


class Plain(Module):
    def configure_model(self):
        pass

    def configure_optimizers(self):
        return sgd(self)


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers", "ignore:.*`logger=False`")
def test_a_trainers_optimizer_is_told_of_a_registration_in_a_callback():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Trainer(**QUIET, callbacks=[Late()]).fit(Plain())
    assert any("SGD holds net.0.weight, net.2.weight from before" in str(warning.message) for warning in told)
