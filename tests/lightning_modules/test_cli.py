import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from datamodules import PixelMNIST
from lightning_modules import SequenceClassifier
from lightning_modules.cli import main
from spectral_param import svd_parametrizations
from tests.small_data import write_multilabel, write_ucr, write_words
from tests.versions import checkpoints_by_command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = [
    # Lightning warns that what is tested now lies beside what was trained
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "examples" / "configs").glob("*.yaml"))
MNIST_ROWS = next(path for path in CONFIGS if path.stem == "mnist_rows")
ADDING = next(path for path in CONFIGS if path.stem == "adding")
FAST = ("--trainer.fast_dev_run=true", "--trainer.accelerator=cpu")


@pytest.fixture(autouse=True)
def _as_if_called_in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["spectral-param"])


@pytest.fixture
def small_mnist_options(small_mnist) -> list[str]:
    """Options that put the small MNIST in the place of the real one."""
    options = {"root": small_mnist, "val_size": 20, "batch_size": 16}
    return [f"--data.init_args.{name}={value}" for name, value in options.items()]


@pytest.fixture(scope="module")
def small_data(tmp_path_factory, small_mnist) -> dict[str, tuple[str, ...]]:
    """For each data module, options that put small data in the place of the real ones."""
    root = tmp_path_factory.mktemp("data")
    words = (f"--data.init_args.root={write_words(write_words(root), '{}.txt')}", "--data.init_args.seq_len=5")
    write_ucr(root, labels=(1, 2, 3), length=128)
    write_multilabel(root, "bibtex")
    write_multilabel(root, "mediamill", sparse=False)
    mnist = tuple(f"--data.init_args.{option}" for option in (f"root={small_mnist}", "val_size=20", "batch_size=16"))
    labels = (f"--data.init_args.root={root}", "--model.init_args.input_size=6", "--model.init_args.output_size=3")
    return {
        "AddingProblem": (),
        "CopyMemory": (),
        "FlatMNIST": (*mnist, "--model.init_args.depth=2"),
        "PixelMNIST": mnist,
        "PennTreebank": (*words, "--model.init_args.hidden_size=16"),
        "WikiText2": (*words, "--model.init_args.hidden_size=16"),
        "UCRArchive": (f"--data.init_args.root={root}",),
        "MultiLabel": (*labels, "--model.init_args.depth=2"),
    }


def options_of(config: Path, small_data: dict[str, tuple[str, ...]]) -> list[str]:
    name = yaml.safe_load(config.read_text())["data"]["class_path"]
    return ["--config", str(config), *small_data[name]]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_fits(config, small_data):
    main(["fit", *options_of(config, small_data), *FAST])


@pytest.mark.parametrize("name", ["adding", "copy", "mnist_rows", "mlp_depth", "ptb", "bibtex"])
def test_every_task_runs_every_command(name, small_data):
    config = next(path for path in CONFIGS if path.stem == name)
    for command in ("validate", "test", "predict"):
        main([command, *options_of(config, small_data), *FAST])


def test_there_is_a_configuration_of_every_data_module():
    import datamodules

    used = {yaml.safe_load(path.read_text())["data"]["class_path"] for path in CONFIGS}
    assert used == set(datamodules.__all__)


def test_configurations_fit_the_real_data(shared_data):
    folders = {"PennTreebank": "ptb", "UCRArchive": "ucr", "PixelMNIST": "mnist"}
    for name in ("ptb", "ucr", "mnist_rows"):
        config = next(path for path in CONFIGS if path.stem == name)
        folder = folders[yaml.safe_load(config.read_text())["data"]["class_path"]]
        options = ["--config", str(config), f"--data.init_args.root={shared_data / folder}"]
        small = ["--model.init_args.hidden_size=16", "--data.init_args.seq_len=20"] if name == "ptb" else []
        main(["fit", *options, *small, *FAST])


@checkpoints_by_command
def test_checkpoint_scores_as_at_the_end_of_training(small_mnist_options, small_mnist):
    options = ["--config", str(MNIST_ROWS), *small_mnist_options, "--trainer.log_every_n_steps=1"]
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


@checkpoints_by_command
def test_predict_leaves_a_file_and_says_where(small_mnist_options, caplog):
    options = ["--config", str(MNIST_ROWS), *small_mnist_options]
    main(["fit", *options, "--trainer.log_every_n_steps=1"])
    (checkpoint,) = map(str, Path("runs").rglob("last.ckpt"))
    with caplog.at_level("INFO", "lightning"):
        cli = main(["predict", *options, "--ckpt_path", checkpoint])
    (path,) = Path("runs").rglob("predictions_0.pt")
    assert path.parent == Path(cli.trainer.log_dir) != Path(checkpoint).parents[1]
    assert f"The predictions are in {path}" in caplog.text

    inputs, _ = zip(*cli.datamodule.predict_dataloader(), strict=True)
    model = SequenceClassifier.load_from_checkpoint(checkpoint).eval()
    assert torch.equal(torch.cat(torch.load(path)["predictions"]), model(torch.cat(inputs)).argmax(1))

    main(["predict", *options, "--predictions.output_dir=elsewhere", "--trainer.logger=false"])
    assert [path.name for path in Path("elsewhere").iterdir()] == ["predictions_0.pt"]


def test_predictions_are_written_by_a_callback_of_a_configuration(tmp_path):
    options = ["--trainer.callbacks=PredictionWriter", "--trainer.callbacks.output_dir=chosen"]
    main(["predict", "--config", str(ADDING), *FAST, *options])
    assert Path("chosen/predictions_0.pt").is_file()


def test_command_line_overrides_the_configuration(small_mnist_options):
    options = ["--trainer.fast_dev_run=true", "--model.init_args.cell=ornn", "--seed_everything=3"]
    cli = main(["fit", "--config", str(MNIST_ROWS), *small_mnist_options, *options])
    assert cli.model.hparams.cell == "ornn"
    assert cli.config.fit.seed_everything == 3


# Lightning says that the command line's optimizer takes the place of the model's
@pytest.mark.filterwarnings("ignore:.*configure_optimizers. will be overridden by")
def test_optimizer_of_the_command_line_trains_the_factors():
    optimizer = ["--optimizer=SGD", "--optimizer.lr=0.01", "--lr_scheduler=ExponentialLR", "--lr_scheduler.gamma=0.5"]
    cli = main(["fit", "--config", str(ADDING), *FAST, *optimizer])
    [optimizer] = cli.trainer.optimizers
    assert isinstance(optimizer, torch.optim.SGD)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in cli.model.parameters()} == held
    [(_, parametrization)] = svd_parametrizations(cli.model)
    assert (parametrization.sigma != 1.0).any()


@pytest.mark.parametrize("argument", ["cell=mlp", "hidden=8", "radius=wide"])
def test_wrong_arguments_are_named(argument, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", str(MNIST_ROWS), f"--model.init_args.{argument}"])
    assert argument.split("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        (["--model.init_args.hiden_size=8"], "hidden_size"),
        (["--data.init_args.lenght=8"], "length"),
        (["--model=SequenceRegresor"], "SequenceRegressor"),
        (["--data=AdingProblem"], "AddingProblem"),
        (["--trainer.callbacks+=SpectralMoniter"], "SpectralMonitor"),
        (["--traner.max_epochs=2"], "trainer"),
        (["--config", "wrong.yaml"], "max_epochs"),
    ],
)
def test_wrong_names_are_answered_with_near_ones(options, meant, capsys):
    Path("wrong.yaml").write_text("trainer:\n  max_epoch: 2\n")
    with pytest.raises(SystemExit, match="2"):
        main(["fit", "--config", str(ADDING), *options])
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_help(capsys):
    for words, expected in (
        (["--help"], ["reproduce --help", "fit", "predict"]),
        (["fit", "--model.help", "SequenceRegressor"], ["--model.learning_rate", "radius of the band"]),
        (["fit", "--help"], ["The task, a LightningModule", "datamodules.PixelMNIST", "--predictions.output_dir"]),
        (["fit", "--data.help", "PixelMNIST"], ["--data.val_size", "--data.num_workers", "whether the pixels are"]),
        (["reproduce", "--help"], ["pixel-mnist", "--max-hours"]),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        printed = capsys.readouterr().out
        assert all(part in printed for part in expected)


def test_runs_quietly_as_a_program(tmp_path):
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["spectral-param"]
    module, function = script.split(":")
    assert callable(getattr(importlib.import_module(module), function))
    command = [sys.executable, "-m", "lightning_modules", "fit", "--config", str(ADDING), *FAST]
    run = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert "LeafSpec" not in run.stdout + run.stderr


def test_the_usage_names_the_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["__main__.py"])
    with pytest.raises(SystemExit, match="2"):
        main(["fit"])
    assert capsys.readouterr().err.startswith("usage: spectral-param ")
