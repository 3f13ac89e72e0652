import csv
import math
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from spectral_param.__main__ import main
from spectral_param.callbacks import GradientNormMonitor, SpectralMonitor
from spectral_param.report.album import draw
from spectral_param.report.history import History
from spectral_param.report.page import FILE_NAME, page, rebuild, write_report
from spectral_param.report.run import Run, read_run
from tests.spectral_param.callbacks.small_runs import Regression, Sequences, sequences, trainer, vectors


class Page(HTMLParser):
    """What stands on a page: headings, cells, pictures and open tags."""

    def __init__(self, text):
        super().__init__()
        self.headings, self.cells, self.pictures, self.links, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "img":
            self.pictures.append(attrs["alt"])
        self.links += [attrs[name] for name in ("src", "href") if name in attrs]
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


PICTURES = [
    "Margin, gradient and loss",
    "Gradients through time",
    "Distribution of singular values",
    "Every singular value",
    "Margin by weight",
    "At the edges of the band",
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two monitors with a CSV and a checkpoint, and its module."""
    folder = tmp_path_factory.mktemp("run")

    class Named(Sequences):
        def __init__(self, note="<b> & co"):
            super().__init__()
            self.save_hyperparameters()

    model = Named()
    monitors = SpectralMonitor(every_n_steps=2, dense="plain.*"), GradientNormMonitor(times=4, every_n_steps=2)
    run = trainer(folder, *monitors, logger=CSVLogger(folder), enable_checkpointing=True, log_every_n_steps=1)
    torch.manual_seed(0)
    run.fit(model, sequences())
    return folder / "lightning_logs" / "version_0", monitors


def test_a_page_is_written_at_the_end_of_fit(finished):
    folder, _ = finished
    found = Page((folder / FILE_NAME).read_text(encoding="utf-8"))
    assert not found.open
    assert found.pictures == PICTURES
    assert found.headings[0] == "Singular values of version_0"
    assert set(found.headings[1:]) == {"Weights at the last reading", "Settings", "Software", *PICTURES}
    assert {"rnn.weight_hh_l0", "plain.weight_ih_l0", "plain.weight_hh_l0"} <= set(found.cells)
    assert {"5×5", "16×4", "note", "<b> & co", "torch", torch.__version__} <= set(found.cells)
    assert all(link.startswith("data:image/png;base64,") for link in found.links)


def test_is_rebuilt_from_the_checkpoint(finished, tmp_path, capsys):
    folder, _ = finished
    main(["report", str(folder), "--output", str(tmp_path / "again.html")])
    assert capsys.readouterr().out.strip() == str(tmp_path / "again.html")
    found = Page((tmp_path / "again.html").read_text(encoding="utf-8"))
    assert found.pictures == PICTURES
    assert {"note", "<b> & co", "5×5"} <= set(found.cells)


def test_is_rebuilt_from_the_csv(finished, tmp_path):
    folder, (spectral, gradients) = finished
    shutil.copy(folder / "metrics.csv", tmp_path)
    run = read_run(tmp_path)
    sigma = spectral.history["plain.weight_hh_l0"].numpy()
    np.testing.assert_allclose(run.margins["plain.weight_hh_l0"][1], np.abs(sigma - 1).max(axis=1), rtol=1e-6)
    steps, times, norms = run.gradients["rnn.h"]
    assert (steps.tolist(), times.tolist()) == ([0, 2, 4], [0])
    np.testing.assert_allclose(norms[:, 0], gradients.history["rnn.h"][:, 0], rtol=1e-6)
    assert Page(rebuild(tmp_path).read_text(encoding="utf-8")).pictures == [
        "Margin, gradient and loss",
        "Margin by weight",
    ]


def test_loss_in_a_csv(tmp_path):
    run = trainer(tmp_path, SpectralMonitor(report=False), logger=CSVLogger(tmp_path), log_every_n_steps=1)
    model = Regression()
    run.fit(model, vectors())
    with open(f"{run.log_dir}/metrics.csv", newline="") as file:
        assert "train_loss" in next(csv.reader(file))
    assert read_run(run.log_dir).loss[1].tolist() == pytest.approx(model.losses)


def test_nothing_to_report(tmp_path, capsys):
    with pytest.raises(FileNotFoundError, match="found no checkpoint and no metrics.csv with readings"):
        read_run(tmp_path)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path)])
    assert "found no checkpoint" in capsys.readouterr().err
    torch.save({"callbacks": {"x": {"history": Run}}}, tmp_path / "odd.ckpt")
    with pytest.raises(ValueError, match=r"odd\.ckpt: expected a checkpoint of tensors and plain values alone"):
        read_run(tmp_path)


def test_no_page_without_a_logger_or_where_it_is_not_wanted(tmp_path):
    trainer(tmp_path, SpectralMonitor()).fit(Regression(), vectors())
    trainer(tmp_path, SpectralMonitor(report=False), logger=CSVLogger(tmp_path)).fit(Regression(), vectors())
    assert not list(tmp_path.glob("**/*.html"))


def test_pictures_reach_tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    trainer(tmp_path, SpectralMonitor(), logger=logger).fit(Regression(), vectors())
    tags = EventAccumulator(logger.log_dir).Reload().Tags()["images"]
    assert set(tags) == {"Margin, gradient and loss", "Distribution of singular values", "Every singular value"}


def test_pictures_reach_loggers_of_images(tmp_path):
    class Images(CSVLogger):
        seen = ()

        def log_image(self, key, images, step):
            self.seen += ((key, len(images), step),)

    logger = Images(tmp_path)
    trainer(tmp_path, SpectralMonitor(), logger=logger).fit(Regression(), vectors())
    assert logger.seen[0] == ("Margin, gradient and loss", 1, 8)
    assert len(logger.seen) == 3


def test_figures_on_demand(finished):
    _, (spectral, gradients) = finished
    assert list(spectral.figures()) == [PICTURES[0], *PICTURES[2:]]
    assert list(gradients.figures()) == PICTURES[:2]


def test_of_many_weights_the_worst_are_drawn_one_by_one():
    steps = np.arange(3.0)
    sigma = {f"layer.{i}": (steps, np.full((3, 4), 1 + 0.1 * i)) for i in range(10)}
    margins = {name: (steps, np.abs(values - 1).max(axis=1)) for name, (_, values) in sigma.items()}
    album = draw(Run(sigma=sigma, margins=margins))
    titles = [panel.get_title() for name in album if name.startswith("Every") for panel in album[name].axes]
    assert titles == [f"layer.{i}" for i in range(9, 3, -1)]
    assert len(album["Margin by weight"].axes[0].get_yticklabels()) == 10


ODD = ["cost_$_per_$", "$", "a$b", r"$\frac$", "_hidden", "x_$y^{$"]


def texts_of(figure):
    """What is drawn, letter by letter: titles, tick labels and legends."""
    texts = [text for panel in figure.axes for text in (panel.title, *panel.get_yticklabels())]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    drawn = [text._preprocess_math(text.get_text()) for text in texts]
    return {text.strip() for text, is_formula in drawn if not is_formula}


def test_names_are_drawn_as_they_are_written():
    steps, sigma = np.arange(4.0), np.linspace(0.9, 1.1, 16).reshape(4, 4)
    run = Run(
        sigma=dict.fromkeys(ODD, (steps, sigma)),
        margins=dict.fromkeys(ODD, (steps, np.abs(sigma - 1).max(axis=1))),
        weights={name: {"low": 0.9, "high": 1.1} for name in ODD},
        gradients={f"{name}.h": (steps, np.arange(3.0), np.ones((4, 3))) for name in ODD},
        norms=dict.fromkeys(ODD, (steps, np.ones(4))),
    )
    album = draw(run)
    found = Page(page(run, album))  # that all can be drawn
    assert len(found.pictures) == len(album) >= 6
    assert set(ODD) <= set(found.cells)
    for title, expected in (
        ("Margin, gradient and loss", {*ODD, *(f"{name}.h, t = 0" for name in ODD)}),
        ("Margin by weight", set(ODD)),
    ):
        assert expected <= texts_of(album[title])
    for kind in ("Every singular value", "Distribution of singular values", "At the edges of the band"):
        drawn = set().union(*(texts_of(figure) for title, figure in album.items() if title.startswith(kind)))
        assert set(ODD) <= drawn


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("rows", [slice(None), slice(2, None), slice(2, 3)])
def test_a_run_that_is_not_finite_is_drawn(value, rows):
    history = History()
    for step in range(5):
        sigma = torch.linspace(0.9, 1.1, 4)
        if step in range(5)[rows]:
            sigma[: 1 + step % 4] = value
        history.record(step, {"weight": sigma, "loss": sigma[0]})
    described = {"weight": {"shape": [4, 4], "low": 0.9, "high": 1.1}}
    run = Run()
    run.add_state({"history": history.state_dict(), "versions": {}, "described": described, "center": 1.0})
    assert len(Page(page(run, draw(run))).pictures) >= 3


def test_a_run_of_which_nothing_is_a_number_has_a_page():
    history = History()
    history.record(0, {"weight": torch.full((3,), math.nan), "loss": torch.tensor(math.nan)})
    run = Run()
    run.add_state({"history": history.state_dict(), "versions": {}, "described": {}, "center": 1.0})
    assert not Page(page(run, draw(run))).pictures


def test_a_page_that_cannot_be_written_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_report(Run(name="before"), path, {})
    before = path.read_bytes()

    def full_disk(self, data, **options):
        with self.open("w", **options) as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_report(Run(name="after"), path, {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def failing(error):
    def fail(*args, **options):
        raise error

    return fail


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("spectral_param.report.page._image", ValueError("Expected end of text")),
        ("spectral_param.report.album.draw", RuntimeError("cannot draw")),
        ("pathlib.Path.write_text", OSError(28, "No space left on device")),
        ("tensorboard.summary.writer.event_file_writer.EventFileWriter.add_event", None),
    ],
)
def test_a_report_that_fails_is_a_warning_and_the_training_is_kept(tmp_path, monkeypatch, where, error):
    logger = CSVLogger(tmp_path)
    if error is None:  # a logger that takes no picture

        class Refusing(CSVLogger):
            def log_image(self, *args, **options):
                raise ConnectionError("no network")

        logger, error = Refusing(tmp_path), ConnectionError("no network")
    else:
        monkeypatch.setattr(where, failing(error))
    monitor, model = SpectralMonitor(), Regression()
    run = trainer(tmp_path, monitor, logger=logger)
    told = rf"^The report on singular values is not written, since {type(error).__name__}: .*{error.args[-1]}"
    with pytest.warns(UserWarning, match=told):
        run.fit(model, vectors())
    assert run.state.status == "finished"
    assert monitor.history.steps[-1] == 8
    monkeypatch.undo()
    assert {path.name for path in Path(run.log_dir).iterdir()} <= {"metrics.csv", "hparams.yaml", FILE_NAME}


def test_a_module_with_dollar_signs_in_its_name_has_its_report(tmp_path):
    class Priced(Regression):
        def __init__(self):
            super().__init__()
            self.add_module("cost_$_per_$", self.first)

        def forward(self, x):
            return self.second(torch.tanh(self._modules["cost_$_per_$"](x)))

    model = Priced()
    del model.first
    run = trainer(tmp_path, SpectralMonitor(), logger=CSVLogger(tmp_path))
    run.fit(model, vectors())
    found = Page(Path(run.log_dir, FILE_NAME).read_text(encoding="utf-8"))
    assert "cost_$_per_$.weight" in found.cells


def test_a_run_is_read_and_reported_under_an_ascii_locale(finished, tmp_path):
    folder, _ = finished
    shutil.copy(folder / "metrics.csv", tmp_path)
    text = (tmp_path / "metrics.csv").read_text(encoding="utf-8")
    (tmp_path / "metrics.csv").write_text(text.replace("rnn.", "σ."), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "spectral_param", "report", str(tmp_path)]
    subprocess.run(command, env={**os.environ, **ascii_only}, check=True, capture_output=True)
    assert "σ.weight_hh_l0" in Page((tmp_path / FILE_NAME).read_text(encoding="utf-8")).cells


def test_a_weight_that_is_lost_is_among_the_worst():
    margins = {f"layer.{i}": (np.arange(2.0), np.array([0.1, 0.1 * i])) for i in range(9)}
    margins["lost"] = (np.arange(2.0), np.array([0.1, math.nan]))
    album = draw(Run(margins=margins))
    drawn = [text.get_text() for text in album["Margin, gradient and loss"].legends[0].get_texts()]
    assert drawn == ["lost", *(f"layer.{i}" for i in range(8, 3, -1))]


def test_an_empty_run_has_an_empty_page():
    assert Page(page(Run(), {})).headings == ["Singular values"]


def test_a_browser_shows_it_without_an_error(finished, tmp_path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium installed")
    folder, _ = finished
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=900,3000",
         f"--user-data-dir={tmp_path}", f"--screenshot={tmp_path / 'page.png'}", "--virtual-time-budget=5000",
         (folder / FILE_NAME).as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (tmp_path / "page.png").stat().st_size > 50_000
    assert not re.search(r"CONSOLE|ERR_", done.stderr)


def test_the_command_line_is_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "spectral_param", "--help"], capture_output=True, text=True, check=True
    )
    assert "report" in done.stdout
