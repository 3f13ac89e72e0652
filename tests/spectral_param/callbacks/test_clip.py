import math

import numpy as np
import pytest
import torch
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, StochasticWeightAveraging
from torch import nn

from spectral_param import (
    Band,
    Fixed,
    Interval,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    spectral_norm,
)
from spectral_param.callbacks import SpectralClip
from spectral_param.callbacks.clip import project_
from spectral_param.parametrization.blocks import matrices_of
from tests.spectral_param.callbacks.schedule_free import ScheduleFree
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors
from tests.versions import averaging_steps

EVERY_STEP = pytest.param(lambda: of_lightning.EMAWeightAveraging(), marks=averaging_steps)


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


@pytest.mark.parametrize("averaging", [EVERY_STEP, lambda: StochasticWeightAveraging(1e-2, swa_epoch_start=1)])
def test_averages_stay_in_range_whatever_the_order(tmp_path, averaging):
    for before in (True, False):
        model = Regression()
        callbacks = [averaging(), SpectralClip(0.5, 0.8)]
        trainer(tmp_path, *(callbacks if before else callbacks[::-1]), max_epochs=3).fit(model, vectors())
        sigma = singular_values(model.first)
        assert sigma.min() >= 0.5 - 1e-6
        assert sigma.max() <= 0.8 + 1e-6


def steps_on_sigma(*steps):
    """SGD that adds these numbers to raw σ, one a step, instead of following gradients."""

    class Steps(torch.optim.SGD):
        def step(self, closure=None):
            closure()
            raw = self.param_groups[0]["params"][0]
            with torch.no_grad():
                raw.add_(left.pop(0))

    left = list(steps)
    return lambda model: Steps([model.first.parametrizations.weight[0].raw_sigma], lr=0.1)


class Stepping(Regression):
    """Whose σ begin at ±0.95 and are moved by an optimizer of the test's own."""

    def __init__(self, make, sigma=None, side=1.0):
        super().__init__()
        self.make = make
        register_svd_parametrization(
            remove_svd_parametrization(self.first), sigma=sigma, init="orthogonal", train="sigma"
        )
        sigma_map = self.first.parametrizations.weight[0].sigma_map
        with torch.no_grad():
            self.first.parametrizations.weight[0].raw_sigma.copy_(sigma_map.inverse(torch.full((4,), 0.95 * side)))

    def configure_optimizers(self):
        return self.make(self)

    @property
    def sigma(self):
        return self.first.parametrizations.weight[0].sigma.detach()


class Signs(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.seen.append(pl_module.sigma.tolist())


@pytest.mark.parametrize("sigma", [None, Interval(-2.0, 2.0)])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_sigma_that_a_step_takes_through_zero_returns_to_the_edge_that_it_came_from(tmp_path, sigma, side):
    signs = Signs()
    model = Stepping(steps_on_sigma(-1.25 * side, -1.9 * side, 5.0 * side), sigma, side)
    trainer(tmp_path, SpectralClip(0.9, 1.1), signs).fit(model, vectors(3))
    assert signs.seen == pytest.approx(np.repeat([[0.9 * side], [0.9 * side], [1.1 * side]], 4, axis=1), abs=1e-6)


def test_sigma_may_go_through_zero_where_it_may_be_zero(tmp_path):
    signs = Signs()
    trainer(tmp_path, SpectralClip(max=1.1), signs).fit(Stepping(steps_on_sigma(-1.25, -5.0)), vectors(2))
    assert signs.seen == pytest.approx(np.repeat([[-0.3], [-1.1]], 4, axis=1), abs=1e-6)


def test_sigma_that_is_not_finite_is_not_made_a_number(tmp_path):
    model = Stepping(steps_on_sigma(math.nan))
    trainer(tmp_path, SpectralClip(0.9, 1.1)).fit(model, vectors(1))
    assert model.sigma.isnan().all()


@averaging_steps
@pytest.mark.parametrize("late", [False, True])
def test_an_average_over_steps_through_zero_is_in_range(tmp_path, late):
    class Late(of_lightning.EMAWeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            return not late and super().should_update(step_idx, epoch_idx)

    class Far(Stepping):
        def on_fit_start(self):
            with torch.no_grad():
                self.first.parametrizations.weight[0].raw_sigma.fill_(0.95)

    for clip_first in (True, False):
        model = Far(steps_on_sigma(-1.25, 1.0, -1.9, -1.4), side=0.2)  # the average begins as a copy of what is outside
        callbacks = [Late(decay=0.5), SpectralClip(0.9, 1.1)]
        trainer(tmp_path, *(callbacks[::-1] if clip_first else callbacks)).fit(model, vectors(4))
        assert model.sigma.min() >= 0.9 - 1e-6
        assert model.sigma.max() <= 1.1 + 1e-6


@pytest.mark.parametrize("averaging", [EVERY_STEP, lambda: StochasticWeightAveraging(1e-2)])
def test_averages_of_plain_weights_that_may_not_shrink_are_refused(tmp_path, averaging):
    clip = SpectralClip(0.5, 0.8, project_dense=True)
    with pytest.raises(ValueError, match=r"^project_dense: expected min=0 beside \w+WeightAveraging"):
        trainer(tmp_path, averaging(), clip).fit(Regression(), vectors())
    trainer(tmp_path, averaging(), SpectralClip(max=0.8, project_dense=True), max_epochs=2).fit(Regression(), vectors())


def schedule_free_kinds():
    yield ScheduleFree
    try:
        import schedulefree  # not among the development tools: tried where it happens to be installed
    except ImportError:
        return
    yield from (schedulefree.AdamWScheduleFree, schedulefree.SGDScheduleFree, schedulefree.RAdamScheduleFree)


class Shrinking(Regression):
    """Whose loss pulls all σ through 0, validated and saved at the averaged point."""

    def __init__(self, kind, sigma=None):
        super().__init__(sigma)
        self.kind = kind
        self.evaluated = []

    def training_step(self, batch, batch_idx):
        raw = self.first.parametrizations.weight[0].raw_sigma
        return 3 * raw.sum() + self(batch[0]).sum()

    def on_train_epoch_start(self):
        self.optimizers().optimizer.train()

    def on_validation_epoch_start(self):
        self.optimizers().optimizer.eval()

    def on_validation_epoch_end(self):
        self.optimizers().optimizer.train()

    def validation_step(self, batch, batch_idx):
        weights = self.first.weight, self.second.weight
        self.evaluated.append([torch.linalg.svdvals(weight).tolist() for weight in weights])

    def configure_optimizers(self):
        return self.kind(self.parameters(), lr=0.3)


@pytest.mark.parametrize("kind", list(schedule_free_kinds()), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sigma", [None, Band(0.2)], ids=["unconstrained", "band"])
def test_the_point_that_a_schedule_free_optimizer_evaluates_is_in_range(tmp_path, kind, sigma):
    model = Shrinking(kind, sigma)
    options = {"max_epochs": 3, "num_sanity_val_steps": 0}
    trainer(tmp_path, SpectralClip(0.9, 1.1), **options).fit(model, vectors(20), vectors(1))
    for first, _ in model.evaluated:
        assert min(first) >= 0.9 - 1e-5
        assert max(first) <= 1.1 + 1e-5
    assert len(model.evaluated) == 3
    assert min(first) <= 0.95  # so far does the loss pull
    model = Shrinking(kind)
    clip = SpectralClip(max=0.8, project_dense=True)
    trainer(tmp_path, clip, **options).fit(model, vectors(20), vectors(1))
    assert np.max([weight for weights in model.evaluated for weight in weights[1]]) <= 0.8 + 1e-5


def test_what_cannot_be_held_beside_a_schedule_free_optimizer_is_refused(tmp_path):
    class Unknown(ScheduleFree):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            del self.param_groups[0]["train_mode"]

    for clip, kind, message in (
        (SpectralClip(0.5, 0.8), Unknown, "SpectralClip: expected an optimizer that says how it averages, got Unknown"),
        (SpectralClip(renormalize=True), ScheduleFree, "renormalize: expected False beside ScheduleFree"),
        (SpectralClip(0.5, project_dense=True), ScheduleFree, "project_dense: expected min=0 beside ScheduleFree"),
    ):
        with pytest.raises(ValueError, match=f"^{message}"):
            trainer(tmp_path, clip).fit(Shrinking(kind), vectors(2), vectors(1))


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
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")  # an older one, at a list
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
        assert singular_values(model.first).max() <= 0.8 + 1e-6
        nn.init.constant_(model.first.parametrizations.weight[0].raw_sigma, 3.0)
        run.optimizers[0].step()
        assert singular_values(model.first).max() > 2
    trainer(tmp_path, clip).fit(Regression(), vectors())


class Grows(Regression):
    """Gets another optimizer, or a layer and its parameters, after the first epoch."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def on_train_epoch_start(self):
        if self.current_epoch == 1 and self.how == "optimizer":
            self.trainer.optimizers = [torch.optim.Adam(self.parameters(), lr=0.1)]
        elif self.current_epoch == 1 and self.how == "layer":
            self.grow()

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 2 and self.how == "layer within a step":
            self.grow()
        return super().training_step(batch, batch_idx)

    def grow(self):
        self.first = register_svd_parametrization(nn.Linear(6, 4))
        self.second = nn.Linear(4, 2)
        self.optimizers().optimizer.add_param_group({"params": [*self.first.parameters(), *self.second.parameters()]})


@pytest.mark.parametrize("how", ["optimizer", "layer", "layer within a step"])
@pytest.mark.parametrize("low", [0.0, 0.2])
def test_what_comes_during_training_is_held_too(tmp_path, how, low):
    witness, options = Witness(), {"dense": "second.*"} if low == 0 else {}
    trainer(tmp_path, witness, SpectralClip(low, 0.5, **options), max_epochs=3).fit(Grows(how), vectors())
    assert not leaves(low, 0.5, witness.range[0])
    if options:
        assert witness.range[1][1] <= 0.5 * 1.01


def test_steps_of_other_optimizers_are_not_its_business(tmp_path):
    class Inner(Regression):
        def training_step(self, batch, batch_idx):
            nn.init.constant_(self.first.parametrizations.weight[0].raw_sigma, 3.0)
            torch.optim.SGD([nn.Parameter(torch.zeros(2))]).step()
            self.losses.append(singular_values(self.first).max().item())
            return super().training_step(batch, batch_idx)

    model = Inner()
    trainer(tmp_path, SpectralClip(max=0.5)).fit(model, vectors())
    assert min(model.losses[::2]) > 2.9
    assert singular_values(model.first).max() <= 0.5 + 1e-6


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
    with pytest.raises(ValueError, match="min, max: expected one of them, or renormalize=True, got none"):
        SpectralClip()
    for low, high in ((-1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="min, max: expected 0 <= min <= max"):
            SpectralClip(low, high)
    with pytest.raises(TypeError, match="min: expected a number, got str"):
        SpectralClip("weight")
    with pytest.raises(TypeError, match="weights: expected a name pattern"):
        SpectralClip(max=1.0, weights=nn.Linear(1, 1))
    with pytest.warns(UserWarning, match="weights: third matches no weight to clip"):
        trainer(tmp_path, SpectralClip(max=1.0, weights="third")).fit(Regression(), vectors())


class Norms(Callback):
    """σ_max of the plain weight after every step."""

    def __init__(self):
        self.found = []

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.found.append(singular_values(pl_module.second).max().item())


def test_plain_weights_are_held_below_the_cap_for_little(tmp_path):
    norms = Norms()
    clip = SpectralClip(max=0.6, weights=(), dense="second.*")
    trainer(tmp_path, norms, clip, max_epochs=3).fit(Regression(), vectors())
    assert 0.59 < max(norms.found) <= 0.606


def test_a_model_of_both_kinds_is_held_without_a_word(tmp_path):
    model = Regression()  # whose first layer has a σ of its own, which this callback clips
    trainer(tmp_path, SpectralClip(max=0.3, dense="*")).fit(model, vectors())
    assert max(singular_values(layer).max().item() for layer in (model.first, model.second)) <= 0.3031


def test_plain_weights_are_held_from_below_too_by_their_svd(tmp_path):
    model = Regression()
    trainer(tmp_path, SpectralClip(0.5, 0.6, weights=(), dense="second.*")).fit(model, vectors())
    sigma = singular_values(model.second)
    assert 0.5 - 1e-5 <= sigma.min() <= sigma.max() <= 0.6 + 1e-5


def test_what_a_schedule_free_optimizer_averages_of_plain_weights_is_held_below_the_cap(tmp_path):
    model = Shrinking(ScheduleFree)
    clip = SpectralClip(max=0.4, weights=(), dense="second.*")
    options = {"max_epochs": 3, "num_sanity_val_steps": 0}
    trainer(tmp_path, clip, **options).fit(model, vectors(20), vectors(1))
    assert 0.39 < np.max([weight for weights in model.evaluated for weight in weights[1]]) <= 0.404


@averaging_steps
def test_what_is_averaged_of_plain_weights_is_held_below_the_cap(tmp_path):
    clip = SpectralClip(max=0.4, weights=(), dense="second.*")
    model = Regression()
    model.second.weight.data *= 5
    trainer(tmp_path, of_lightning.EMAWeightAveraging(decay=0.99), clip).fit(model, vectors())
    assert singular_values(model.second).max() <= 0.404


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dense": "*"}, "max: expected a positive, finite number for plain weights, got inf"),
        ({"max": 1.0, "dense": "*", "tolerance": -1}, "tolerance: expected a positive"),
    ],
)
def test_a_cap_on_plain_weights_that_is_none_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SpectralClip(**options)


def test_a_pattern_of_plain_weights_that_matches_nothing_is_told(tmp_path):
    with pytest.warns(UserWarning, match=r"dense: head\.\* matches no plain weight"):
        trainer(tmp_path, SpectralClip(max=1.0, dense="head.*")).fit(Regression(), vectors(2))


def test_plain_convolutions_are_held_as_maps_of_images(tmp_path):
    class Images(Regression):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3, padding=1), nn.Conv1d(3, 1, 3))

        def training_step(self, batch, batch_idx):
            return -self.layers(batch[0]).square().mean()

    model = Images()
    images = {"layers.1.*": (6,), "layers.2.*": (6,)}
    clip = SpectralClip(max=0.7, weights="first.*", dense="layers.*", operator=images)
    trainer(tmp_path, clip).fit(model, vectors())
    for conv in model.layers[1:]:
        assert 0.5 < spectral_norm(conv, operator=(6,)).item() <= 0.707


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max": 1.0, "operator": (8,)}, "operator: expected None"),
        ({"min": 0.5, "max": 1.0, "dense": "*", "operator": (8,)}, "operator: expected None with min above 0"),
        ({"max": 1.0, "dense": "*", "operator": (0,)}, "operator: expected positive sizes"),
    ],
)
def test_images_without_kernels_to_hold_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        SpectralClip(**options)


def test_images_of_no_convolution_are_refused_at_fit_start(tmp_path):
    clip = SpectralClip(max=1.0, dense="*", operator=(8,))
    with pytest.raises(ValueError, match="operator: expected patterns of convolutions' weights"):
        trainer(tmp_path, clip).fit(Plain(nn.Linear(4, 1)), vectors())
