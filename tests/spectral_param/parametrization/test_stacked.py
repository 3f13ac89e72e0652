"""Another parametrization on top of an SVD: its σ are not those of the weight any more."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from spectral_param import (
    SpectralCap,
    clip_singular_values_,
    register_svd_parametrization,
    singular_values,
    spectral_penalty,
    spectral_table,
)
from spectral_param.callbacks import SpectralClip, SpectralMonitor, SpectralPenalty
from spectral_param.report.recorder import SpectralRecorder
from spectral_param.report.watch import Watch
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight

    def right_inverse(self, weight):
        return weight / 2


def doubled(**options):
    layer = register_svd_parametrization(nn.Linear(5, 4), **options)
    return parametrize.register_parametrization(layer, "weight", Double())


def doubled_model():
    model = Regression()
    parametrize.register_parametrization(model.first, "weight", Double())
    return model


@pytest.mark.parametrize("options", [{}, {"chunks": 2}, {"base": "frozen"}])
def test_readings_are_of_the_weight(options):
    layer = doubled(**options)
    blocks = layer.weight.detach().unflatten(0, (options.get("chunks", 1), -1))
    sigma = torch.linalg.svdvals(blocks)
    torch.testing.assert_close(singular_values(layer).detach(), sigma.squeeze(0))
    [row] = spectral_table(layer)
    assert (row["min"], row["max"]) == pytest.approx((sigma.min().item(), sigma.max().item()))
    assert row["sigma"].endswith(", Double")
    recorder = SpectralRecorder(layer, every_n_steps=1)
    described = Watch().describe(layer)["weight"]
    assert (described["low"], described["high"]) == (0, math.inf)
    recorder.step()
    torch.testing.assert_close(recorder.history["weight"][-1], sigma.squeeze(0).flatten())


def test_the_penalty_is_of_the_weight_and_so_is_its_gradient():
    layer = doubled()
    raw = layer.parametrizations.weight.original1
    expected = (torch.linalg.svdvals(layer.weight) - 1).square().sum()
    (gradient,) = torch.autograd.grad(expected, raw)
    found = spectral_penalty(layer)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, raw)[0], gradient)


@pytest.mark.parametrize("options", [{}, {"base": "frozen"}])
def test_what_cannot_be_held_by_the_svd_is_refused_and_nothing_changed(options):
    layer = doubled(**options)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match="^weight: Double stands on top of its SVD, .* leave the weight out"):
        clip_singular_values_(layer, max=0.3)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("callback", [SpectralClip(max=0.3), SpectralPenalty(0.1)])
def test_callbacks_refuse_it_at_fit_start(tmp_path, callback):
    with pytest.raises(ValueError, match="^weight: Double stands on top of its SVD"):
        trainer(tmp_path, callback).fit(doubled_model(), vectors(2))


def test_lengths_may_be_held_all_the_same_and_the_monitor_reads_the_weight(tmp_path):
    model, monitor = doubled_model(), SpectralMonitor(every_n_steps=1)
    trainer(tmp_path, monitor, SpectralClip(renormalize=True), max_epochs=1).fit(model, vectors(2))
    last = monitor.history["first.weight"][-1].sort(descending=True).values
    torch.testing.assert_close(last, torch.linalg.svdvals(model.first.weight.detach()))


def test_a_cap_tells_of_it():
    model = nn.Sequential(doubled(), nn.Linear(4, 4))
    with pytest.warns(UserWarning, match=r"SpectralCap passes over 0\.weight"):
        SpectralCap(model, 100.0)
