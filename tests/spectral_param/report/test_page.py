import csv
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from spectral_param.__main__ import main
from spectral_param.callbacks import GradientNormMonitor, SpectralMonitor
from spectral_param.report.album import draw
from spectral_param.report.page import FILE_NAME, page, rebuild
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
    assert Page(rebuild(tmp_path).read_text()).pictures == ["Margin, gradient and loss", "Margin by weight"]


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
