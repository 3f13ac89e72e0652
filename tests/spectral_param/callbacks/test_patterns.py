import logging

import pytest
import torch
from lightning.pytorch.callbacks import ModelPruning
from torch import nn

from spectral_param import (
    Fixed,
    parameter_groups,
    register_svd_parametrization,
    remove_svd_parametrization,
    svd_parametrizations,
)
from spectral_param.callbacks import BandSchedule, SpectralClip, SpectralMonitor, SpectralPenalty
from spectral_param.callbacks.patterns import warn_unmatched, warn_untrained
from spectral_param.parametrization.lookup import qualified_name
from spectral_param.spectrum.patterns import as_patterns, parametrized_weights, plain_weights
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors


@pytest.fixture
def model():
    model = nn.ModuleDict({"rnn": nn.LSTM(3, 4), "head": nn.Linear(4, 2), "conv": nn.Conv1d(2, 3, 5)})
    register_svd_parametrization(model["rnn"], "weight_hh_l0", chunks=4)
    register_svd_parametrization(model["head"])
    return model


def test_patterns():
    assert as_patterns("weights", "a.*") == ("a.*",)
    assert as_patterns("weights", ["a", "b"]) == ("a", "b")
    for wrong in (3, [3], None):
        with pytest.raises(TypeError, match="weights: expected a name pattern"):
            as_patterns("weights", wrong)


def test_clean_names():
    assert qualified_name("_fsdp_wrapped_module.net._orig_mod.fc._checkpoint_wrapped_module.weight") == "net.fc.weight"


def test_weights_in_svd_form_by_pattern(model):
    assert list(parametrized_weights(model, ["*"])) == ["rnn.weight_hh_l0", "head.weight"]
    assert list(parametrized_weights(model, ["head.*"])) == ["head.weight"]
    assert not parametrized_weights(model, [])


def test_plain_weights_are_matrices_that_no_parametrization_holds(model):
    assert list(plain_weights(model, ["*"])) == ["rnn.weight_ih_l0", "conv.weight"]
    module, weight = plain_weights(model, ["conv.*"])["conv.weight"]
    assert module is model["conv"]
    assert weight is model["conv"].weight


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "compute",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", amount=0.5),
    ],
)
def test_what_a_weight_is_computed_from_is_no_plain_weight(compute):
    layer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    compute(layer[0])
    assert list(plain_weights(layer, ["*"])) == ["1.weight"]


@pytest.mark.parametrize("reflectors", [None, (2, 0), (0, 2)])
def test_raw_sigma(reflectors):
    layer = register_svd_parametrization(nn.Linear(4, 4), reflectors=reflectors, init="orthogonal")
    [(_, parametrization)] = svd_parametrizations(layer)
    with torch.no_grad():
        parametrization.raw_sigma.fill_(3.0)
    assert torch.linalg.svdvals(layer.weight).tolist() == pytest.approx([3, 3, 3, 3])


def test_fixed_sigma_has_no_raw_numbers():
    layer = register_svd_parametrization(nn.Linear(4, 4), sigma=Fixed(), init="orthogonal")
    [(_, parametrization)] = svd_parametrizations(layer)
    assert parametrization.raw_sigma is None


def test_patterns_that_match_nothing_are_named():
    with pytest.warns(UserWarning, match=r"weights: typo\.\* matches no weight of the model"):
        warn_unmatched("weights", ["fc.*", "typo.*"], ["fc.weight"], "weight")
    warn_unmatched("weights", ["*"], [], "weight")


@pytest.mark.parametrize("callback", [SpectralClip(max=1.0), SpectralPenalty(0.1), BandSchedule({0: 0.1})])
def test_a_model_with_nothing_for_a_callback_is_told(tmp_path, callback):
    plain = Regression()
    remove_svd_parametrization(plain.first)
    with pytest.warns(UserWarning, match=rf"^{type(callback).__name__} has nothing to \w+: no weight is in"):
        trainer(tmp_path, callback).fit(plain, vectors(2))


@pytest.mark.parametrize("callback", [SpectralMonitor(), SpectralClip(max=1.0)])
def test_weights_that_pruning_passes_over_are_named(tmp_path, callback):
    pruning = ModelPruning("l1_unstructured", amount=0.5)
    with pytest.warns(UserWarning, match=r"^ModelPruning passes over first\.weight, which are computed from factors"):
        trainer(tmp_path, callback, pruning).fit(Regression(), vectors(2))


def test_factors_in_no_optimizer_are_named(model):
    parameters = list(model.parameters())
    warn_untrained(model, [torch.optim.SGD(parameters)])
    others = [p for p in parameters if p is not parametrized_weights(model, ["*"])["head.weight"].raw_sigma]
    with pytest.warns(UserWarning, match=r"No optimizer holds the factors of head\.weight:"):
        warn_untrained(model, [torch.optim.SGD(others)])
    for factor in parametrized_weights(model, ["*"])["head.weight"].factors:
        factor.requires_grad_(False)
    warn_untrained(model, [torch.optim.SGD(others)])


# ------------------------------------------------------------------------------------------------------ learning rates


class WithOptimizer(Regression):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def configure_optimizers(self):
        return self.make(self)


def hints(make, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    monitors = SpectralMonitor(report=False), SpectralMonitor(weights=(), dense="second.*", report=False)
    trainer(tmp_path, *monitors).fit(WithOptimizer(make), vectors())
    return [record.getMessage() for record in caplog.records if "parameter_groups" in record.getMessage()]


def test_one_line_tells_where_adam_trains_sigma_at_the_rate_of_all_else(tmp_path, caplog):
    def warmed_up(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.0)]

    [hint] = hints(warmed_up, tmp_path, caplog)
    assert hint.startswith("AdamW trains σ at the rate of all else")
    assert hint.endswith("spectral_param.parameter_groups(model, lr=…).")


@pytest.mark.parametrize(
    "make",
    [
        lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
        lambda model: torch.optim.Adam(parameter_groups(model, lr=1e-3)),
        lambda model: torch.optim.Adam(parameter_groups(model, sigma_lr=1e-2), lr=1e-3),
        lambda model: torch.optim.Adam([*model.second.parameters(), *model.first.parametrizations.parameters()][:2]),
    ],
    ids=["SGD", "groups", "rate of σ", "σ not trained"],
)
@pytest.mark.filterwarnings("ignore:No optimizer holds")
def test_nothing_is_told_where_sigma_has_its_rate(make, tmp_path, caplog):
    assert hints(make, tmp_path, caplog) == []
