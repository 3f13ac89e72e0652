import io
import math

import pytest
import torch
from lightning.pytorch import Trainer
from rich.console import Console

from spectral_param import singular_values
from spectral_param.callbacks import SpectralProgressBar
from spectral_param.callbacks.progress import sigma_table, sparkline
from tests.spectral_param.callbacks.small_runs import Regression, Validated, vectors


def test_table_stands_under_the_bars_while_training(tmp_path):
    class Shown(SpectralProgressBar):
        text = ""

        def on_train_batch_end(self, *args):
            super().on_train_batch_end(*args)
            console = Console(width=100)
            with console.capture() as capture:
                console.print(self.progress.get_renderable())
            self.text = capture.get()

    bar = Shown(every_n_steps=7, leave=True)
    run = Trainer(
        accelerator="cpu", default_root_dir=tmp_path, callbacks=[bar], logger=False, max_epochs=2,
        enable_checkpointing=False, enable_model_summary=False, log_every_n_steps=1,
    )  # fmt: skip
    model = Validated()
    run.fit(model, vectors(), vectors())
    [row] = [line for line in bar.text.splitlines() if "first.weight" in line]
    assert len(row.split()) == 6
    assert "Epoch 1/1" in bar.text
    run.validate(model, vectors(), verbose=False)
    assert not bar._sigma


def test_the_table_that_is_left_is_of_what_training_arrived_at(tmp_path):
    class Kept(SpectralProgressBar):
        def teardown(self, trainer, pl_module, stage):
            self.last = self._sigma
            super().teardown(trainer, pl_module, stage)

    bar, model = Kept(every_n_steps=20), Regression()
    run = Trainer(
        accelerator="cpu", default_root_dir=tmp_path, callbacks=[bar], logger=False, max_epochs=1,
        enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    run.fit(model, vectors())
    sigma = bar.last["first.weight"].sort(descending=True).values
    torch.testing.assert_close(sigma[0], singular_values(model.first).detach())


def test_table_holds_the_numbers():
    sigma = {"a.weight": torch.tensor([[0.5, 1.0]]), "b.weight": torch.tensor([[2.0, 3.0], [1.0, 1.0]])}
    console = Console(width=100)
    with console.capture() as capture:
        console.print(sigma_table(sigma))
    rows = [line.split() for line in capture.get().splitlines()[2:]]
    assert rows == [
        ["a.weight", "0.500", "0.750", "1.000", "5.0e-01", sparkline(sigma["a.weight"])],
        ["b.weight", "1.000", "1.750", "3.000", "2.0e+00", sparkline(sigma["b.weight"])],
    ]


def test_sparkline_is_a_histogram():
    assert sparkline(torch.tensor([0.0, 0.9, 1.0, 1.0]), bins=2) == "▃█"
    assert len(sparkline(singular_values(Regression().first).detach())) == 8


def test_bad_interval():
    with pytest.raises(ValueError, match="every_n_steps: expected a positive number, got 0"):
        SpectralProgressBar(every_n_steps=0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_table_of_what_is_not_finite(value):
    console = Console(width=90, file=io.StringIO())
    console.print(sigma_table({"some": torch.tensor([[1.0, value]]), "none": torch.tensor([[value, value]])}))
    some, none = console.file.getvalue().splitlines()[-2:]
    assert some.split()[:2] == ["some", "nan" if math.isnan(value) else "1.000"]
    assert "█" in some
    assert "█" not in none
