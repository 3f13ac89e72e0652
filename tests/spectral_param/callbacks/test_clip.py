import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint, StochasticWeightAveraging
from torch import nn

from spectral_param import Band, Fixed, singular_values
from spectral_param.callbacks import SpectralClip
from spectral_param.callbacks.clip import project_
from spectral_param.parametrization.blocks import matrices_of
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors


class Witness(Callback):
    """Singular values of W and of the plain layer, as the first callback sees them at each batch's end."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        weights = pl_module.first.weight, pl_module.second.weight
        self.seen.append(torch.stack([torch.linalg.svdvals(w.detach())[[0, -1]] for w in weights]))

    @property
    def range(self):
        seen = torch.stack(self.seen)
        return [(values.min().item(), values.max().item()) for values in seen.unbind(1)]


def leaves(low, high, range):
    return range[0] < low - 1e-6 or range[1] > high + 1e-6


def test_without_it_values_leave_the_range_with_it_they_do_not(tmp_path):
    for callbacks, expected in (([], True), ([SpectralClip(0.5, 1.1)], False)):
        witness = Witness()
        trainer(tmp_path, witness, *callbacks, max_epochs=2).fit(Regression(), vectors())
        assert leaves(0.5, 1.1, witness.range[0]) is expected
        assert leaves(0.5, 1.1, witness.range[1])


def test_the_step_itself_is_clipped_and_counted_once(tmp_path, monkeypatch):
    model = Regression()
    parametrization = model.first.parametrizations.weight[0]
    counts = []
    clip = parametrization.clip_
    monkeypatch.setattr(parametrization, "clip_", lambda *a: counts.append(a) or clip(*a), raising=False)
    trainer(tmp_path, SpectralClip(0.5, 1.0), accumulate_grad_batches=4).fit(model, vectors(8))
    assert counts == [(0.5, 1.0)] * 3  # once before the first step


def test_manual_optimization_is_clipped_between_steps(tmp_path):
    class Manual(Regression):
        automatic_optimization = False
        between = ()

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()
                self.between += (singular_values(self.first).max().item(),)

        def configure_optimizers(self):
            return [torch.optim.Adam(self.parameters(), 0.3) for _ in range(2)]

    model = Manual()
    trainer(tmp_path, SpectralClip(max=0.7)).fit(model, vectors())
    assert max(model.between) <= 0.7 + 1e-6
    assert len(model.between) == 16


def test_range_of_a_band_and_of_fixed_values(tmp_path):
    witness = Witness()
    trainer(tmp_path, witness, SpectralClip(0.9, 1.05)).fit(Regression(Band(0.2), lr=1.0), vectors())
    assert not leaves(0.9, 1.05, witness.range[0])
    trainer(tmp_path, SpectralClip(0.9, 1.05)).fit(Regression(Fixed()), vectors())


@pytest.mark.parametrize("sigma", [Fixed(2.0), Band(0.1, center=2.0)])
def test_a_range_that_the_map_does_not_reach(tmp_path, sigma):
    model = Regression(sigma)
    before = model.first.weight.detach().clone()
    with pytest.raises(ValueError, match=r"min, max: .* reaches σ from"):
        trainer(tmp_path, SpectralClip(0.5, 1.5)).fit(model, vectors())
    assert torch.equal(before, model.first.weight)
    assert not model.losses


def test_plain_weights_are_projected_on_request(tmp_path):
    witness = Witness()
    trainer(tmp_path, witness, SpectralClip(0.5, 0.9, project_dense=True)).fit(Regression(), vectors())
    assert not any(leaves(0.5, 0.9, found) for found in witness.range)
    witness = Witness()
    clip = SpectralClip(0.5, 0.9, weights="second.*", project_dense=True)
    trainer(tmp_path, witness, clip).fit(Regression(), vectors())
    assert [leaves(0.5, 0.9, found) for found in witness.range] == [True, False]


def test_projection_is_the_nearest_matrix():
    weight = torch.randn(6, 2, 2)
    u, sigma, vh = np.linalg.svd(weight.numpy().reshape(6, 4), full_matrices=False)
    expected = u @ np.diag(sigma.clip(0.5, 1.5)) @ vh
    matrices = matrices_of(nn.Conv1d(2, 6, 2), weight)
    project_(weight, matrices, 0.5, 1.5)
    np.testing.assert_allclose(weight.numpy().reshape(6, 4), expected, atol=1e-5)
    before = weight.clone()
    project_(weight, matrices, 0.1, 9.0)
    assert torch.equal(before, weight)


class Plain(Regression):
    """With a plain layer of another kind, which is not trained but has its place in the optimizer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        nn.init.normal_(layer.weight)


@pytest.mark.parametrize(
    ("layer", "low", "high"),
    [
        (lambda: nn.ConvTranspose2d(8, 4, 3), 0.0, 1.0),
        (lambda: nn.ConvTranspose2d(8, 4, 3, groups=2), 0.0, 0.3),
        (lambda: nn.Conv2d(4, 8, 3, groups=2), 0.5, 0.6),
        (lambda: nn.Bilinear(3, 3, 9), 0.9, 1.0),
        (lambda: nn.Linear(5, 3, dtype=torch.float64), 0.9, 1.0),
    ],
    ids=["transposed", "transposed in groups", "groups", "bilinear", "float64"],
)
def test_plain_weights_are_projected_as_singular_values_reads_them(tmp_path, layer, low, high):
    model = Plain(layer())
    assert leaves(low, high, singular_values(model.layer).flatten().sort().values[[0, -1]].tolist())
    trainer(tmp_path, SpectralClip(low, high, weights="layer.*", project_dense=True)).fit(model, vectors())
    sigma = singular_values(model.layer)
    assert sigma.min() >= low - 1e-5
    assert sigma.max() <= high + 1e-5


def test_a_plain_weight_that_is_no_matrix_is_passed_over_and_named_patterns_say_so(tmp_path):
    class Positions(Regression):
        def __init__(self):
            super().__init__()
            self.positions = nn.Parameter(torch.randn(1, 5, 4))

    model = Positions()
    before = model.positions.detach().clone()
    trainer(tmp_path, SpectralClip(max=0.1, project_dense=True)).fit(model, vectors(2))
    assert torch.equal(model.positions, before)
    with pytest.warns(UserWarning, match="weights: positions matches no weight to clip"):
        trainer(tmp_path, SpectralClip(max=0.1, weights="positions", project_dense=True)).fit(model, vectors(2))


def test_a_plain_weight_that_is_not_finite_stays_as_it_is():
    weight = torch.full((2, 2), torch.nan)
    project_(weight, matrices_of(nn.Linear(2, 2), weight), 0.5, 1.5)
    assert weight.isnan().all()


def test_renormalizing_keeps_reflectors_at_unit_length(tmp_path):
    model = Regression()
    trainer(tmp_path, SpectralClip(renormalize=True)).fit(model, vectors())
    parametrization = model.first.parametrizations.weight[0]
    for reflectors in (parametrization.u, parametrization.v):
        torch.testing.assert_close(reflectors.norm(dim=0), torch.ones(4))


@pytest.mark.parametrize("averaging", [EMAWeightAveraging, lambda: StochasticWeightAveraging(1e-2, swa_epoch_start=1)])
def test_averages_stay_in_range_whatever_the_order(tmp_path, averaging):
    for before in (True, False):
        model = Regression()
        callbacks = [averaging(), SpectralClip(0.5, 0.8)]
        trainer(tmp_path, *(callbacks if before else callbacks[::-1]), max_epochs=3).fit(model, vectors())
        sigma = singular_values(model.first)
        assert sigma.min() >= 0.5 - 1e-6
        assert sigma.max() <= 0.8 + 1e-6


def test_checkpoints_of_steps_are_in_range(tmp_path):
    saving = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=1, save_top_k=-1)
    trainer(tmp_path, SpectralClip(0.5, 0.8), saving, enable_checkpointing=True).fit(Regression(), vectors(4))
    paths = list((tmp_path / "ckpt").iterdir())
    assert len(paths) == 4
    for path in paths:
        model = Regression.load_from_checkpoint(path)
        assert singular_values(model.first).max() <= 0.8 + 1e-6


def test_16_mixed_skips_the_clip_with_the_step(tmp_path):
    from lightning.pytorch.plugins import MixedPrecision

    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
    witness = Witness()
    trainer(tmp_path, witness, SpectralClip(0.5, 0.8), plugins=[plugin]).fit(Regression(), vectors())
    assert not leaves(0.5, 0.8, witness.range[0])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo at self.log
def test_compiled_model(tmp_path):
    witness = Witness()
    model = torch.compile(Regression(), backend="aot_eager")
    trainer(tmp_path, witness, SpectralClip(0.5, 0.8)).fit(model, vectors(4))
    assert not leaves(0.5, 0.8, witness.range[0])


def test_optimizers_are_let_go(tmp_path):
    class Failing(Regression):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                raise KeyError
            return super().training_step(batch, batch_idx)

    clip = SpectralClip(max=0.8)
    for model in (Regression(), Failing()):
        run = trainer(tmp_path, clip)
        try:
            run.fit(model, vectors())
        except KeyError:
            assert isinstance(model, Failing)
        [optimizer] = run.optimizers
        assert not optimizer._optimizer_step_post_hooks
        assert singular_values(model.first).max() <= 0.8 + 1e-6
    trainer(tmp_path, clip).fit(Regression(), vectors())


def test_only_the_chosen_weights(tmp_path):
    class Two(Regression):
        def __init__(self):
            super().__init__()
            from spectral_param import register_svd_parametrization

            register_svd_parametrization(self.second)

    model = Two()
    trainer(tmp_path, SpectralClip(max=0.3, weights="second.*")).fit(model, vectors())
    assert singular_values(model.second).max() <= 0.3 + 1e-6
    assert singular_values(model.first).max() > 0.4


def test_bad_options(tmp_path):
    for low, high in ((-1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="min, max: expected 0 <= min <= max"):
            SpectralClip(low, high)
    with pytest.raises(TypeError, match="weights: expected a name pattern"):
        SpectralClip(weights=nn.Linear(1, 1))
    with pytest.warns(UserWarning, match="weights: third matches no weight to clip"):
        trainer(tmp_path, SpectralClip(weights="third")).fit(Regression(), vectors())
