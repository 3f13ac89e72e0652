import math

import lightning.pytorch.callbacks as of_lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, StochasticWeightAveraging
from torch import nn

from spectral_param import (
    Band,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    svd_parametrizations,
)
from spectral_param.callbacks import BandSchedule
from spectral_param.callbacks.schedule import move_bands_, value_at
from spectral_param.sigma.level import number
from tests.spectral_param.callbacks.schedule_free import ScheduleFree
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors
from tests.versions import averaging_steps


class Radii(Callback):
    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, *args):
        band = pl_module.first.parametrizations.weight[0].sigma_map
        self.seen.append((float(torch.as_tensor(band.radius).max()), float(torch.as_tensor(band.center).max())))


def banded(radius, center=1.0):
    layer = register_svd_parametrization(nn.Linear(6, 5), sigma=Band(radius, center), init="orthogonal")
    [(_, parametrization)] = svd_parametrizations(layer)
    with torch.no_grad():
        parametrization.factors[1].normal_()
    return layer, parametrization


@pytest.mark.parametrize("per_value", [False, True])
def test_sigma_stays_when_the_band_changes(per_value):
    layer, parametrization = banded(torch.full((5,), 0.1) if per_value else 0.1)
    before = layer.weight.detach().clone()
    move_bands_([parametrization], {"radius": 0.3, "center": 1.1})
    torch.testing.assert_close(layer.weight, before, rtol=0, atol=1e-6)
    assert torch.as_tensor(parametrization.sigma_map.low).max() == pytest.approx(0.8)
    with torch.no_grad():
        parametrization.factors[1].fill_(100.0)
    assert singular_values(layer).max().item() == pytest.approx(1.4)


def test_sigma_outside_a_narrower_band_moves_inside_and_the_others_stay():
    _, parametrization = banded(0.5)
    with torch.no_grad():
        parametrization.factors[1].copy_(parametrization.sigma_map.inverse(torch.tensor([0.6, 0.97, 1.0, 1.02, 1.4])))
    move_bands_([parametrization], {"radius": 0.05})
    assert parametrization.sigma.tolist() == pytest.approx([0.952, 0.97, 1.0, 1.02, 1.048], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sigma_at_an_edge_stays_where_the_band_widens(dtype):
    _, parametrization = banded(0.1)
    parametrization.to(dtype)
    raw = parametrization.factors[1]
    with torch.no_grad():
        raw.copy_(torch.tensor([-40.0, -15.0, 0.0, 15.0, 40.0]))
    before = parametrization.sigma.detach().clone()
    for radius in (0.100001, 0.1001, 0.3):
        move_bands_([parametrization], {"radius": radius})
        torch.testing.assert_close(parametrization.sigma, before, rtol=0, atol=1e-3 if dtype.itemsize < 4 else 1e-6)


def test_levels_in_float64_are_what_the_schedule_says():
    _, parametrization = banded(torch.full((5,), 0.1, dtype=torch.float64))
    move_bands_([parametrization], {"radius": 0.055})
    assert (parametrization.sigma_map.radius == 0.055).all()


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@averaging_steps
@pytest.mark.parametrize("first", [True, False])
def test_averages_have_the_band_of_the_model_where_a_run_goes_on(tmp_path, first):
    def run(schedule, **options):
        averaging = of_lightning.EMAWeightAveraging(decay=0.9)
        return trainer(tmp_path, *((averaging, schedule) if first else (schedule, averaging)), **options)

    def schedule(weights="*"):
        return BandSchedule(radius={0: 0.02, 16: 0.5}, weights=weights)

    half = run(schedule())
    half.fit(Regression(Band(0.02)), vectors(8))
    half.save_checkpoint(tmp_path / "half.ckpt")
    ends = []
    for weights in ("*", "first.*"):
        model = Regression(Band(0.02))
        run(schedule(weights), max_epochs=2).fit(model, vectors(8), ckpt_path=tmp_path / "half.ckpt")
        ends.append(model.first.weight)
    assert torch.equal(*ends)


def test_a_map_that_two_weights_share_moves_once():
    band = Band(0.1)
    layers = [register_svd_parametrization(nn.Linear(4, 4), sigma=band, init="orthogonal") for _ in range(2)]
    parametrizations = [p for layer in layers for _, p in svd_parametrizations(layer)]
    for p in parametrizations:
        with torch.no_grad():
            p.factors[1].normal_()
    before = [layer.weight.detach().clone() for layer in layers]
    move_bands_(parametrizations, {"radius": 0.2})
    for layer, weight in zip(layers, before, strict=True):
        torch.testing.assert_close(layer.weight, weight, rtol=0, atol=1e-6)


def test_nothing_is_touched_where_the_band_stays():
    _, parametrization = banded(0.1)
    before = parametrization.factors[1].clone()
    move_bands_([parametrization], {"radius": 0.1})
    assert torch.equal(before, parametrization.factors[1])


def test_follows_steps(tmp_path):
    radii = Radii()
    schedule = BandSchedule(radius={0: 0.1, 2: 0.1, 4: 0.3}, center=lambda step: 1 + 0.01 * step)
    trainer(tmp_path, schedule, radii, max_epochs=2, accumulate_grad_batches=2).fit(Regression(Band(0.1)), vectors(8))
    expected = [(r, 1 + 0.01 * step) for step, r in enumerate([0.1, 0.1, 0.1, 0.2, 0.3, 0.3, 0.3, 0.3]) for _ in "12"]
    assert [r for pair in radii.seen for r in pair] == pytest.approx([r for pair in expected for r in pair])


def test_follows_models_and_layers_that_come_later(tmp_path):
    class Replaces(Regression):
        def on_train_epoch_start(self):
            if self.current_epoch == 1:
                self.first = register_svd_parametrization(nn.Linear(6, 4), sigma=Band(0.3), init="orthogonal")

    radii = Radii()
    schedule = BandSchedule(radius={0: 0.05})
    for model in (Regression(Band(0.05)), Regression(Band(0.3)), Replaces(Band(0.2))):
        trainer(tmp_path, schedule, radii, max_epochs=2).fit(model, vectors(2))
    assert {round(radius, 6) for radius, _ in radii.seen} == {0.05}


def test_follows_epochs(tmp_path):
    radii = Radii()
    schedule = BandSchedule(radius={1: 0.1, 3: 0.5}, interval="epoch")
    trainer(tmp_path, schedule, radii, max_epochs=4).fit(Regression(Band(0.1)), vectors(2))
    assert [radius for radius, _ in radii.seen] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.3, 0.3, 0.5, 0.5])


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # the second run saves nothing
def test_resumes_as_if_uninterrupted(tmp_path):
    def schedule():
        return BandSchedule(radius={0: 0.1, 16: 0.5})

    whole = Regression(Band(0.1))
    trainer(tmp_path, schedule(), max_epochs=2).fit(whole, vectors(8))
    saving = ModelCheckpoint(tmp_path, filename="half")
    trainer(tmp_path, schedule(), saving, enable_checkpointing=True).fit(Regression(Band(0.1)), vectors(8))
    resumed = Regression(Band(0.1))
    trainer(tmp_path, schedule(), max_epochs=2).fit(resumed, vectors(8), ckpt_path=tmp_path / "half.ckpt")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_checkpoint_is_tested_with_its_own_band(tmp_path):
    class Tested(Regression):
        def test_step(self, batch, batch_idx):
            self.weight_in_test = self.first.weight.detach().clone()

    model = Tested(Band(0.1))
    run = trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5}))
    run.fit(model, vectors(8))
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = Tested(Band(0.1))
    trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5})).test(
        loaded, vectors(1), ckpt_path=tmp_path / "end.ckpt", verbose=False
    )
    assert torch.equal(loaded.weight_in_test, model.first.weight)

    per_value = Tested(Band(torch.full((4,), 0.1)))
    run = trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5}))
    run.fit(per_value, vectors(8))
    loaded = Tested(Band(torch.full((4,), 0.1)))
    loaded.load_state_dict(per_value.state_dict())
    assert torch.equal(loaded.first.weight, per_value.first.weight)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_band_that_nobody_puts_back_is_told(tmp_path):
    class Late(Regression):
        """Whose weight is registered when the callbacks are there already."""

        def configure_model(self):
            register_svd_parametrization(self.first, sigma=Band(0.1), init="orthogonal")

        def __init__(self, sigma=None):
            super().__init__(Band(0.1))
            remove_svd_parametrization(self.first)

    run = trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5}))
    model = Regression(Band(0.1))
    run.fit(model, vectors(8))
    run.save_checkpoint(tmp_path / "end.ckpt")
    late = Late()
    trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5}), max_epochs=2).fit(
        late, vectors(2), ckpt_path=tmp_path / "end.ckpt"
    )
    told = (
        r"^first\.weight: raw numbers of σ from Band\(radius=0\.45\d*, center=1\.0\) are loaded into Band\(radius=0\.1,"
    )
    with pytest.warns(UserWarning, match=told):
        Regression.load_from_checkpoint(tmp_path / "end.ckpt", sigma=Band(0.1))
    for hooked in (model, late):
        assert not hooked._load_state_dict_pre_hooks
        assert not hooked._load_state_dict_post_hooks


class Loads(Regression):
    """Tells whether W is what the checkpoint was saved with."""

    def test_step(self, batch, batch_idx):
        self.weight_in_test = self.first.weight.detach().clone()


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_bands_of_a_schedule_of_other_weights_come_back_or_are_told(tmp_path):
    model = Regression(Band(0.5))
    run = trainer(tmp_path, BandSchedule(radius={0: 0.01}))
    run.fit(model, vectors(8))
    run.save_checkpoint(tmp_path / "end.ckpt")
    loaded = Loads(Band(0.5))
    tested = trainer(tmp_path, BandSchedule(radius={0: 0.01}, weights="first.*"))
    tested.test(loaded, vectors(1), ckpt_path=tmp_path / "end.ckpt", verbose=False)
    assert torch.equal(loaded.weight_in_test, model.first.weight)

    older = torch.load(tmp_path / "end.ckpt", weights_only=True)
    for numbers in older["state_dict"]._metadata.values():
        numbers.pop("sigma_numbers", None)
    torch.save(older, tmp_path / "older.ckpt")
    told = r"^first\.weight: raw numbers of σ from Band\(radius=0\.01, center=1\.0\) are loaded into Band\(radius=0\.5,"
    with pytest.warns(UserWarning, match=told):
        tested.test(Loads(Band(0.5)), vectors(1), ckpt_path=tmp_path / "older.ckpt", verbose=False)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_checkpoint_of_weights_alone_has_its_band(tmp_path):
    model = Loads(Band(0.1))
    run = trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5}))
    run.fit(model, vectors(8))
    run.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    loaded = Loads(Band(0.1))
    again = trainer(tmp_path, BandSchedule(radius={0: 0.1, 8: 0.5}))
    again.test(loaded, vectors(1), ckpt_path=tmp_path / "weights.ckpt", verbose=False)
    assert torch.equal(loaded.weight_in_test, model.first.weight)


class Read(Callback):
    """σ at every step."""

    def __init__(self):
        self.sigma = []

    def on_train_batch_start(self, trainer, pl_module, *args):
        self.sigma.append(singular_values(pl_module.first).detach().clone())


@pytest.mark.parametrize(
    "averaging",
    [
        pytest.param(lambda: of_lightning.EMAWeightAveraging(decay=0.9), marks=averaging_steps),
        lambda: StochasticWeightAveraging(0.1, swa_epoch_start=1),
    ],
)
@pytest.mark.parametrize("weights", ["*", "first.*"])
def test_averages_are_of_numbers_of_one_band(tmp_path, averaging, weights):
    read = Read()
    schedule = BandSchedule(radius={0: 0.02, 20: 0.02, 21: 0.5}, weights=weights)
    model = Regression(Band(0.02))
    trainer(tmp_path, schedule, read, averaging(), max_epochs=3).fit(model, vectors(8))
    sigma = torch.stack(read.sigma)
    assert singular_values(model.first).max() <= sigma.max() + 1e-6
    assert singular_values(model.first).min() >= sigma.min() - 1e-6


def test_both_points_of_a_schedule_free_optimizer_stay():
    _, parametrization = banded(0.1)
    raw = parametrization.raw_sigma
    optimizer = ScheduleFree([raw], lr=0.1)
    optimizer.train()
    z = optimizer.state[raw]["z"] = torch.randn_like(raw)

    def points():
        return [parametrization.sigma_map(point) for point in (raw.detach().lerp(z, 1 - 1 / 0.9), z)]

    before = points()
    move_bands_([parametrization], {"radius": 0.3}, [optimizer])
    after = points()
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_two_schedules_of_one_weight_resume_without_a_word(tmp_path):
    def schedules():
        return BandSchedule(radius={0: 0.1, 4: 0.3}), BandSchedule(center={0: 1.0, 4: 1.3}, weights="first*")

    model = Regression(Band(0.1))
    run = trainer(tmp_path, *schedules())
    run.fit(model, vectors(8))
    run.save_checkpoint(tmp_path / "end.ckpt")
    again = Regression(Band(0.1))
    trainer(tmp_path, *schedules(), max_epochs=2).fit(again, vectors(8), ckpt_path=tmp_path / "end.ckpt")
    assert again.first.parametrizations.weight[0].sigma_map.center == 1.3


def test_schedules_of_radius_and_center_of_the_same_weights(tmp_path):
    model = Regression(Band(0.1))
    schedules = BandSchedule(radius={0: 0.1, 4: 0.3}), BandSchedule(center={0: 1.0, 1: 1.3}, interval="epoch")
    run = trainer(tmp_path, *schedules, max_epochs=2)
    run.fit(model, vectors(8))
    run.save_checkpoint(tmp_path / "end.ckpt")
    band = model.first.parametrizations.weight[0].sigma_map
    assert (band.radius, band.center) == (0.3, 1.3)


def test_a_fit_that_an_exception_ends_leaves_no_hooks(tmp_path):
    class Fails(Regression):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("failed")

    model = Fails(Band(0.1))
    with pytest.raises(RuntimeError, match="failed"):
        trainer(tmp_path, BandSchedule(radius={0: 0.1})).fit(model, vectors(2))
    assert not model._load_state_dict_pre_hooks
    assert not model._load_state_dict_post_hooks


def test_numbers_of_numpy_are_numbers():
    schedule = BandSchedule(radius={0: np.array(0.1), np.int64(4): np.float32(0.5), math.inf: 1.0})
    assert value_at(schedule.radius, 4) == 0.5
    assert number("radius", np.where(True, 0.1, 0.3)) == 0.1


@pytest.mark.parametrize("value", [0.0, -0.1, math.nan, math.inf])
def test_a_function_that_leaves_the_numbers(tmp_path, value):
    model = Regression(Band(0.1))
    schedule = BandSchedule(radius=lambda step: 0.1 if step < 2 else value)
    with pytest.raises(ValueError, match=rf"^radius at 2: expected a (positive|finite) number, got {value}"):
        trainer(tmp_path, schedule).fit(model, vectors(8))
    assert model.first.parametrizations.weight[0].sigma_map.radius == 0.1


def test_values_between_milestones():
    schedule = {5: 1.0, 10: 2.0, 20: 0.0}
    assert [value_at(schedule, t) for t in (0, 5, 6, 10, 15, 20, 99)] == pytest.approx([1, 1, 1.2, 2, 1, 0, 0])
    assert value_at(lambda t: 2.0 * t, 3) == 6


@pytest.mark.parametrize("name", ["radius", "center"])
@pytest.mark.parametrize("schedule", [[0.1, 0.2], 0.1])
def test_what_is_no_schedule(name, schedule):
    with pytest.raises(TypeError, match=f"^{name}: expected milestones, .* or a function of the step, got "):
        BandSchedule(**{name: schedule})


@pytest.mark.parametrize("name", ["radius", "center"])
def test_milestones_that_are_no_numbers(name):
    with pytest.raises(TypeError, match=f"^{name} at 0: expected a number, got str"):
        BandSchedule(**{name: {0: "0.1"}})
    with pytest.raises(TypeError, match=f"^{name}: expected milestones at numbers, got str"):
        BandSchedule(**{name: {"0": 0.1}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "radius, center: expected a schedule for one of them"),
        ({"radius": {}}, "radius: expected milestones, got none"),
        ({"center": {}}, "center: expected milestones, got none"),
        ({"radius": {0: 0.1, 5: 0.0}}, "radius at 5: expected a positive number, got 0.0"),
        ({"radius": {0: math.nan}}, "radius at 0: expected a finite number, got nan"),
        ({"center": {0: math.inf}}, "center at 0: expected a finite number, got inf"),
        ({"center": {math.nan: 1.0}}, "center: expected milestones at numbers, got nan"),
        ({"radius": {0: 0.1}, "interval": "batch"}, "interval: expected 'step' or 'epoch', got 'batch'"),
    ],
)
def test_bad_options(arguments, message):
    with pytest.raises(ValueError, match=message):
        BandSchedule(**arguments)


def test_says_what_is_not_there(tmp_path):
    with pytest.warns(UserWarning, match=r"weights: first\.\* matches no weight in a Band"):
        trainer(tmp_path, BandSchedule(radius={0: 0.1}, weights="first.*")).fit(Regression(), vectors())
