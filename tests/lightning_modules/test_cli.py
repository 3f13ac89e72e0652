import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from datamodules import PixelMNIST
from lightning_modules import SequenceClassifier
from lightning_modules.cli import main

pytestmark = [
    # Lightning asks torch and jsonargparse for names that are on their way out
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::jsonargparse._deprecated.JsonargparseDeprecationWarning"),
    # and warns that what is tested now lies beside what was trained
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    # it advises more loader workers than the small data here can use
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
]

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "examples" / "configs").glob("*.yaml"))
MNIST_ROWS = next(path for path in CONFIGS if path.stem == "mnist_rows")


@pytest.fixture(autouse=True)
def _as_if_called_in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["lightning_modules"])


@pytest.fixture
def small_data(small_mnist) -> list[str]:
    """Options that put the small MNIST in the place of the real one."""
    options = {"root": small_mnist, "val_size": 20, "batch_size": 16}
    return [f"--data.init_args.{name}={value}" for name, value in options.items()]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_every_configuration_runs(config, command, small_data):
    content = yaml.safe_load(config.read_text())
    options = small_data if content["data"]["class_path"] == "PixelMNIST" else []
    main([command, "--config", str(config), *options, "--trainer.fast_dev_run=true"])


def test_checkpoint_scores_as_at_the_end_of_training(small_data, small_mnist):
    options = ["--config", str(MNIST_ROWS), *small_data, "--trainer.log_every_n_steps=1"]
    fit = main(["fit", *options])
    (checkpoint,) = map(str, Path("runs").rglob("last.ckpt"))

    validate = main(["validate", *options, "--ckpt_path", checkpoint])
    assert validate.trainer.callback_metrics["val_accuracy"] == fit.trainer.callback_metrics["val_accuracy"]

    data = PixelMNIST(small_mnist, seq_len=28)
    data.setup("test")
    inputs, labels = next(iter(data.test_dataloader()))
    accuracy = (fit.model.eval()(inputs).argmax(1) == labels).float().mean()
    test = main(["test", *options, "--ckpt_path", checkpoint])
    assert test.trainer.callback_metrics["test_accuracy"] == accuracy

    loaded = SequenceClassifier.load_from_checkpoint(checkpoint)
    assert torch.equal(loaded.eval()(inputs), fit.model(inputs))


def test_command_line_overrides_the_configuration(small_data):
    options = ["--trainer.fast_dev_run=true", "--model.init_args.cell=ornn", "--seed_everything=3"]
    cli = main(["fit", "--config", str(MNIST_ROWS), *small_data, *options])
    assert cli.model.hparams.cell == "ornn"
    assert cli.config.fit.seed_everything == 3


@pytest.mark.parametrize("argument", ["cell=gru", "hidden=8", "radius=wide"])
def test_wrong_arguments_are_named(argument, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", str(MNIST_ROWS), f"--model.init_args.{argument}"])
    assert argument.split("=")[0] in capsys.readouterr().err


def test_runs_as_a_program():
    command = [sys.executable, "-m", "lightning_modules", "fit", "--model.help", "SequenceRegressor"]
    help = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "--model.learning_rate" in help
    assert "radius of the band" in help
