import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

from spectral_param import Band, Fixed, register_svd_parametrization
from spectral_param.callbacks.sharded_sigma import trained_singular_values
from spectral_param.spectrum.patterns import parametrized_weights
from spectral_param.spectrum.whole_sigma import dense_singular_values
from tests.spectral_param.callbacks.small_runs import trainer


@pytest.fixture
def alone(tmp_path) -> Trainer:
    return trainer(tmp_path)


@pytest.mark.parametrize("sigma", [None, Band(0.3), Band(torch.full((3, 4), 0.3)), Fixed(2.0)])
def test_trained_values_are_those_of_the_blocks(alone, sigma):
    layer = register_svd_parametrization(nn.Linear(4, 15), chunks=3, sigma=sigma, init="orthogonal")
    found = trained_singular_values(alone, parametrized_weights(layer, ["*"])["weight"])
    expected = torch.linalg.svdvals(layer.weight.reshape(3, 5, 4))
    torch.testing.assert_close(found.sort(descending=True).values, expected)
    assert not found.requires_grad


def test_the_weight_is_not_built(alone, monkeypatch):
    layer = register_svd_parametrization(nn.Linear(4, 4))
    parametrization = parametrized_weights(layer, ["*"])["weight"]
    monkeypatch.setattr(parametrization, "forward", None)
    assert trained_singular_values(alone, parametrization).shape == (1, 4)


def test_negative_sigma_is_read_as_a_singular_value(alone):
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.diag(torch.tensor([2.0, 3.0]))
    register_svd_parametrization(layer)
    parametrization = parametrized_weights(layer, ["*"])["weight"]
    with torch.no_grad():
        parametrization.factors[1].neg_()
    assert sorted(trained_singular_values(alone, parametrization).flatten().tolist()) == pytest.approx([2, 3])


def test_dense_values_by_block_of_any_shape_and_dtype():
    weight = torch.randn(8, 3, 2, dtype=torch.bfloat16)
    found = dense_singular_values(nn.Conv1d(3, 8, 2), weight, 2)
    assert found.shape == (2, 4)
    for block, values in zip(weight.float().reshape(2, 4, 6), found, strict=True):
        torch.testing.assert_close(values, torch.linalg.svdvals(block))
