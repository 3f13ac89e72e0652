import copy
import csv
import math

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from spectral_param import Band, register_svd_parametrization, singular_values
from spectral_param.callbacks import SpectralMonitor, spectral_statistics
from spectral_param.report.run import Run
from tests.spectral_param.callbacks.small_runs import Regression, Sequences, Validated, sequences, trainer, vectors


class Truth(SpectralMonitor):
    """Beside each reading the singular values of W itself."""

    def read(self, trainer, pl_module):
        reading = super().read(trainer, pl_module)
        reading["truth"] = torch.linalg.svdvals(pl_module.first.weight.detach())
        return reading


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]


def test_reads_the_weight_before_every_nth_step_and_at_the_end(tmp_path):
    monitor = Truth(every_n_steps=3)
    model = Regression()
    trainer(tmp_path, monitor).fit(model, vectors(8))
    assert monitor.history.steps == [0, 3, 6, 8]
    found = monitor.history["first.weight"].sort(descending=True).values
    torch.testing.assert_close(found, monitor.history["truth"])
    assert monitor.history["loss"][:3, 0].tolist() == pytest.approx([model.losses[i] for i in (0, 3, 6)])


@pytest.mark.parametrize("first", [True, False])
def test_the_last_reading_is_of_the_average_that_takes_the_place_of_the_weights(tmp_path, first):
    monitor, averaging = Truth(every_n_steps=3, report=False), StochasticWeightAveraging(1e-2, swa_epoch_start=1)
    model = Regression()
    run = trainer(tmp_path, *((monitor, averaging) if first else (averaging, monitor)), max_epochs=3)
    run.fit(model, vectors(4))
    greatest = singular_values(model.first).max().item()
    assert monitor.history["first.weight"][-1].max().item() == pytest.approx(greatest)
    assert run.callback_metrics["sigma_max-first.weight"].item() == pytest.approx(greatest)


def test_logs_by_name_at_the_step_of_the_loss(tmp_path):
    loggers = [CSVLogger(tmp_path, name="a"), CSVLogger(tmp_path, name="b")]
    monitor = SpectralMonitor(every_n_steps=4, statistics=["sigma_max"], dense="second.*", report=False)
    run = trainer(tmp_path, monitor, logger=loggers, log_every_n_steps=1)
    run.fit(Regression(), vectors(8))
    for logger in loggers:
        found = [row for row in rows(tmp_path / logger.name / "version_0") if "spectral_margin" in row]
        assert [int(row["step"]) for row in found] == [0, 4, 8]
        names = {"step", "sigma_max-first.weight", "sigma_max-second.weight", "spectral_margin"}
        assert all(set(row) == names for row in found)
        history = torch.cat([monitor.history["first.weight"], monitor.history["second.weight"]], dim=1)
        margins = [float(row["spectral_margin"]) for row in found]
        assert margins == pytest.approx((history - 1).abs().amax(1).tolist())
    assert run.callback_metrics["spectral_margin"].item() == pytest.approx(margins[-1])


def test_default_interval_is_that_of_the_trainer(tmp_path):
    monitor = SpectralMonitor()
    trainer(tmp_path, monitor, log_every_n_steps=5).fit(Regression(), vectors(12))
    assert monitor.history.steps == [0, 5, 10, 12]


def test_a_trainer_that_never_logs(tmp_path):
    monitor = SpectralMonitor()
    trainer(tmp_path, monitor, log_every_n_steps=0).fit(Regression(), vectors(4))
    assert monitor.history.steps == [4]


def test_epochs(tmp_path):
    monitor = SpectralMonitor(every_n_epochs=2)
    trainer(tmp_path, monitor, max_epochs=4).fit(Regression(), vectors(5))
    assert monitor.history.steps == [0, 10, 20]


def test_accumulation_reads_once_a_step(tmp_path):
    monitor = SpectralMonitor(every_n_steps=1)
    model = Regression()
    trainer(tmp_path, monitor, accumulate_grad_batches=4).fit(model, vectors(8))
    assert monitor.history.steps == [0, 1, 2]
    assert monitor.history["loss"][:2, 0].tolist() == pytest.approx([model.losses[0], model.losses[4]])


def test_manual_optimization_counts_batches(tmp_path):
    class Manual(Regression):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(part.parameters(), 0.1) for part in (self.first, self.second)]

    monitor = SpectralMonitor(every_n_steps=3)
    trainer(tmp_path, monitor).fit(Manual(), vectors(7))
    assert monitor.history.steps == [0, 3, 6, 7]


def test_watching_changes_nothing(tmp_path):
    weights = []
    for callbacks in ([], [SpectralMonitor(every_n_steps=1, dense="*")]):
        model = Regression()
        trainer(tmp_path, *callbacks).fit(model, vectors())
        weights.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # the second run saves nothing
@pytest.mark.parametrize("stop", [8, 11])
def test_resumes_as_if_uninterrupted(tmp_path, stop):
    def options():
        return {"max_epochs": 2, "logger": False}

    whole = SpectralMonitor(every_n_steps=2)
    model = Regression()
    trainer(tmp_path, whole, **options()).fit(model, vectors(8))

    class Resumable(torch.utils.data.DataLoader):
        start = 0

        def __iter__(self):
            skip, self.start = self.start, 0
            return iter(list(super().__iter__())[skip:])

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.start = stop % 8

    def data():
        plain = vectors(8)
        return Resumable(plain.dataset, batch_size=plain.batch_size)

    saving = ModelCheckpoint(tmp_path, filename="at", every_n_train_steps=stop)
    first = SpectralMonitor(every_n_steps=2)
    trainer(tmp_path, first, saving, **options(), max_steps=stop, enable_checkpointing=True).fit(Regression(), data())
    second = SpectralMonitor(every_n_steps=2)
    resumed = Regression()
    trainer(tmp_path, second, **options()).fit(resumed, data(), ckpt_path=tmp_path / "at.ckpt")
    assert second.history.steps == whole.history.steps
    for name in whole.history.names:
        assert torch.equal(second.history[name].nan_to_num(), whole.history[name].nan_to_num())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))


def test_two_monitors_have_states_of_their_own(tmp_path):
    monitors = SpectralMonitor(every_n_steps=2), SpectralMonitor(weights=(), dense="second.*", every_n_steps=5)
    run = trainer(tmp_path, *monitors)
    run.fit(Regression(), vectors(8))
    run.save_checkpoint(tmp_path / "both.ckpt")
    states = torch.load(tmp_path / "both.ckpt", weights_only=True)["callbacks"]
    assert [states[m.state_key]["history"]["steps"].tolist() for m in monitors] == [[0, 2, 4, 6, 8], [0, 5, 8]]


def test_names_are_safe_in_file_names(tmp_path):
    saving = ModelCheckpoint(
        tmp_path / "ckpt", filename="{step}-{spectral_margin-first.weight:.2f}", monitor="spectral_margin", mode="min"
    )
    trainer(tmp_path, SpectralMonitor(every_n_steps=1), saving, enable_checkpointing=True).fit(Regression(), vectors())
    [path] = (tmp_path / "ckpt").iterdir()
    assert path.name.startswith("step=8-spectral_margin-first.weight=")


def test_separator(tmp_path):
    run = trainer(tmp_path, SpectralMonitor(separator="/"))
    run.fit(Regression(), vectors())
    assert "sigma_max/first.weight" in run.callback_metrics


def test_progress_bar(tmp_path):
    run = trainer(tmp_path, SpectralMonitor(prog_bar=True))
    run.fit(Regression(), vectors())
    assert set(run.progress_bar_metrics) == {"spectral_margin"}


def test_sanity_check_and_fast_dev_run_are_quiet(tmp_path):
    monitor = SpectralMonitor(every_n_steps=1)
    monitor.on_train_batch_start, read = None, monitor.on_train_batch_start
    run = trainer(tmp_path, monitor, limit_train_batches=0, num_sanity_val_steps=2)
    run.fit(Validated(), vectors(), vectors())
    monitor.on_train_batch_start = read
    trainer(tmp_path, monitor, fast_dev_run=True, logger=True).fit(Validated(), vectors(), vectors())
    assert monitor.history.steps == [0, 1]
    assert not list(tmp_path.glob("**/*.html"))


def test_several_fits_start_anew_or_go_on(tmp_path):
    monitor = SpectralMonitor(every_n_steps=4)
    run = trainer(tmp_path, monitor)
    model = Regression()
    run.fit(model, vectors(8))
    run.fit_loop.max_epochs = 2
    run.fit(model, vectors(8))
    assert monitor.history.steps == [0, 4, 8, 12, 16]
    trainer(tmp_path, monitor).fit(Regression(), vectors(6))
    assert monitor.history.steps == [0, 4, 6]


def test_gates_of_trained_and_plain_weights(tmp_path):
    lstm = nn.LSTM(5, 4, batch_first=True)
    register_svd_parametrization(lstm, "weight_hh_l0", chunks=4)
    monitor = SpectralMonitor(weights="plain.*", dense="plain.weight_ih*", per_gate=True)
    model = Sequences(lstm)
    trainer(tmp_path, monitor).fit(model, sequences())
    expected = [f"plain.weight_{kind}_l0.{gate}" for kind in ("hh", "ih") for gate in "ifgo"]
    assert [name for name in monitor.history.names if name != "loss"] == expected
    for name, block in zip(expected, [*lstm.weight_hh_l0.chunk(4), *lstm.weight_ih_l0.chunk(4)], strict=True):
        found = monitor.history[name][-1].sort(descending=True).values
        torch.testing.assert_close(found, torch.linalg.svdvals(block.detach()))


@pytest.mark.parametrize(
    "layer", [lambda: nn.ConvTranspose2d(3, 5, 2), lambda: nn.Bilinear(3, 4, 2), lambda: nn.Conv2d(4, 6, 3, groups=2)]
)
def test_plain_weights_are_read_as_singular_values_reads_them(tmp_path, layer):
    class Plain(Regression):
        def __init__(self):
            super().__init__()
            self.layer = layer()

    model = Plain()
    monitor = SpectralMonitor(weights=(), dense="layer.*")
    run = trainer(tmp_path, monitor)
    run.fit(model, vectors(2))
    sigma = singular_values(model.layer).detach()
    torch.testing.assert_close(monitor.history["layer.weight"][-1], sigma.flatten())
    expected = spectral_statistics(sigma)
    for statistic, value in expected.items():
        assert run.callback_metrics[f"{statistic}-layer.weight"].item() == pytest.approx(value)
    again = Run()
    again.add_state(monitor.state_dict())  # the page reads the blocks as the monitor did
    assert again.weights["layer.weight"]["condition_number"] == pytest.approx(expected["condition_number"])


@pytest.mark.parametrize("layer", [lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: nn.ConvTranspose1d(4, 6, 3, groups=2)])
def test_groups_of_a_plain_weight_are_read_as_registration_cuts_them(tmp_path, layer):
    class Plain(Regression):
        def __init__(self):
            super().__init__()
            self.layer = layer()

    model = Plain()
    twin = register_svd_parametrization(copy.deepcopy(model.layer), chunks=2)
    monitor = SpectralMonitor(weights=(), dense="layer.*", per_gate=True)
    run = trainer(tmp_path, monitor)
    run.fit(model, vectors(2))
    sigma = singular_values(twin).detach()
    torch.testing.assert_close(monitor.history["layer.weight"][-1], sigma.flatten())
    expected = spectral_statistics(sigma)["condition_number"]
    assert run.callback_metrics["condition_number-layer.weight"].item() == pytest.approx(expected, rel=1e-4)


def test_histograms_reach_tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    monitor = SpectralMonitor(every_n_steps=4, histograms=True, report=False)
    trainer(tmp_path, monitor, logger=[logger, CSVLogger(tmp_path)]).fit(Regression(), vectors(8))
    events = EventAccumulator(logger.log_dir, size_guidance={"histograms": 0}).Reload()
    histograms = events.Histograms("first.weight")
    assert [event.step for event in histograms] == [0, 4]
    assert [event.histogram_value.num for event in histograms] == [4, 4]
    assert "sigma_max-first.weight" in events.Tags()["scalars"]


def test_the_margin_of_the_model_is_not_a_number_where_that_of_a_weight_is_not():
    good, lost = torch.tensor([[1.0, 1.1]]), torch.tensor([[1.0, math.nan]])
    for readings in ({"a": good, "b": lost}, {"a": lost, "b": good}):
        assert math.isnan(SpectralMonitor().summary(readings)["spectral_margin"])


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_run_that_is_lost_goes_on_with_the_histograms_that_there_are(tmp_path, value):
    class Lost(Regression):
        def on_before_optimizer_step(self, optimizer):
            if self.trainer.global_step == 2:
                with torch.no_grad():
                    for parameter in self.parameters():
                        parameter.fill_(value)

    logger = TensorBoardLogger(tmp_path)
    monitor = SpectralMonitor(every_n_steps=1, histograms=True, dense="second.*")
    trainer(tmp_path, monitor, logger=logger).fit(Lost(), vectors(5))
    events = EventAccumulator(logger.log_dir, size_guidance={"histograms": 0}).Reload()
    assert [event.step for event in events.Histograms("first.weight")] == [0, 1, 2]
    assert monitor.history.steps == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo at self.log
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin")  # an older one, at a list
def test_compiled_model(tmp_path):
    model = Regression()
    monitor = Truth(every_n_steps=2)
    trainer(tmp_path, monitor).fit(torch.compile(model, backend="aot_eager"), vectors(4))
    found = monitor.history["first.weight"].sort(descending=True).values
    torch.testing.assert_close(found, monitor.history["truth"])


def test_bf16_mixed_reads_exact_sigma(tmp_path):
    monitor = SpectralMonitor(every_n_steps=1)
    model = Regression(sigma=Band(0.1))
    trainer(tmp_path, monitor, precision="bf16-mixed").fit(model, vectors())
    torch.testing.assert_close(
        monitor.history["first.weight"][-1].sort(descending=True).values, torch.linalg.svdvals(model.first.weight)
    )


def test_says_what_is_not_there(tmp_path):
    with pytest.warns(UserWarning, match=r"dense: third\.\* matches no plain weight"):
        trainer(tmp_path, SpectralMonitor(dense="third.*")).fit(Regression(), vectors())
    with pytest.warns(UserWarning, match="nothing to watch"):
        trainer(tmp_path, SpectralMonitor(weights=())).fit(Regression(), vectors())

    class Late(Regression):
        def on_train_start(self):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.second.parameters(), 0.1)

    with pytest.warns(UserWarning, match=r"No optimizer holds the factors of first\.weight"):
        trainer(tmp_path, SpectralMonitor()).fit(Late(), vectors())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_steps": 0}, "every_n_steps: expected a positive number, got 0"),
        ({"every_n_epochs": -1}, "every_n_epochs: expected a positive number, got -1"),
        ({"every_n_steps": 1, "every_n_epochs": 1}, "every_n_epochs: expected None beside every_n_steps"),
        ({"max_readings": 1}, "max_readings: expected at least 2, got 1"),
        ({"statistics": ["median"]}, r"statistics: expected some of .* got \['median'\]"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        SpectralMonitor(**options)


def test_convolutions_are_watched_as_maps_of_images(tmp_path):
    class Images(Regression):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3, padding=1), nn.Flatten())

        def training_step(self, batch, batch_idx):
            return self.layers(batch[0]).square().mean()

    model = Images()
    monitor = SpectralMonitor(weights=(), dense="layers.*", operator=(6,), every_n_steps=1)
    trainer(tmp_path, monitor).fit(model, vectors())
    expected = singular_values(model.layers[1], operator=(6,))
    assert torch.allclose(torch.as_tensor(monitor.history["layers.1.weight"][-1]), expected)
    assert monitor.described["layers.1.weight"]["operator"] == "6"
    assert monitor.state_key != SpectralMonitor(weights=(), dense="layers.*", every_n_steps=1).state_key
