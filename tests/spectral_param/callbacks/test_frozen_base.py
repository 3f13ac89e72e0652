"""The callbacks on weights whose base is frozen, in the precisions that Lightning has."""

import warnings

import lightning
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from spectral_param import Band, parameter_groups, register_all, singular_values, svd_parametrizations
from spectral_param.callbacks import BandSchedule, SpectralClip, SpectralMonitor, SpectralPenalty


class Regression(lightning.LightningModule):
    def __init__(self, **settings):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 4))
        register_all(self.network, base="frozen", **{"reflectors": 2, "rank": 3, **settings})

    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.network(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(parameter_groups(self.network), lr=1e-2)


def fit(task, callbacks, folder, precision="32-true"):
    rows = DataLoader(TensorDataset(torch.randn(32, 12), torch.randn(32, 4)), 8)
    trainer = lightning.Trainer(
        max_epochs=2, callbacks=callbacks, precision=precision, accelerator="cpu", default_root_dir=folder,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(task, rows)
    return task.network


def differences(network):
    """Of the σ that are said from those that are found, for each weight."""
    layers = network[0], network[2]
    return [(singular_values(x).float() - torch.linalg.svdvals(x.weight.float())).abs().max() for x in layers]


@pytest.mark.parametrize(("precision", "within"), [("32-true", 1e-5), ("bf16-mixed", 1e-5), ("bf16-true", 1e-2)])
def test_sigma_is_watched_clipped_and_drawn_as_it_is_trained(precision, within, tmp_path):
    task = Regression()
    bases = [p.base.clone() for _, p in svd_parametrizations(task)]
    monitor = SpectralMonitor()
    network = fit(task, [monitor, SpectralClip(max=0.9, renormalize=True), SpectralPenalty(0.1)], tmp_path, precision)
    assert all(difference <= within for difference in differences(network))
    assert all(singular_values(network[i]).max() <= 0.9 + within for i in (0, 2))
    assert set(monitor.history.names) >= {"network.0.weight", "network.2.weight"}
    for before, (_, p) in zip(bases, svd_parametrizations(task), strict=True):
        assert torch.equal(before.to(p.base.dtype), p.base)


def test_a_band_that_a_schedule_narrows_holds_the_trained_sigma(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # some σ of the base lie outside the band
        task = Regression(sigma=Band(0.5))
    network = fit(task, [BandSchedule(lambda step: 0.5 / (1 + step))], tmp_path)
    for _, p in svd_parametrizations(network):
        assert p.sigma_map.radius < 0.1
        assert (p.sigma[:3] - 1).abs().max() <= p.sigma_map.radius + 1e-6
    assert all(difference <= 1e-5 for difference in differences(network))


def test_a_clip_below_the_frozen_sigma_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="frozen base stay as they are.*rank above 3"):
        fit(Regression(), [SpectralClip(max=0.01)], tmp_path)
