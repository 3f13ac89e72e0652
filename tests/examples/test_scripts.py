import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "examples"
SHORT = ("certified_convnet", "certified_mlp", "plain_loop", "sigma_finetuning", "spectral_lstm", "wrap_resnet")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SHORT)
def test_is_short(name):
    assert len((SCRIPTS / f"{name}.py").read_text().splitlines()) < 60


def test_wrap_resnet():
    assert load("wrap_resnet").main(size=32, steps=2) == pytest.approx(0.9, abs=1e-4)


def test_sigma_finetuning():
    before, after = load("sigma_finetuning").main(steps=100)
    assert after < 0.5 * before


def test_spectral_lstm(tmp_path):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
    margin = load("spectral_lstm").main(1, accelerator="cpu", limit_train_batches=3, log_every_n_steps=1, **quiet)
    assert 0 < margin < 0.2


def test_certified_mlp(small_mnist):
    accuracy, certified = load("certified_mlp").main(small_mnist, epochs=1, val_size=20)
    assert 0 <= certified <= accuracy <= 1


def test_the_certificate_holds(shared_data):
    accuracy, certified = load("certified_mlp").main(shared_data / "mnist", epochs=1, val_size=50_000)
    assert accuracy > 0.8
    assert certified > 0.2


def test_certified_convnet(small_mnist):
    accuracy, certified = load("certified_convnet").main(small_mnist, epochs=1, val_size=20, width=4)
    assert 0 <= certified <= accuracy <= 1


def test_the_certificate_of_convolutions_holds(shared_data):
    accuracy, certified = load("certified_convnet").main(shared_data / "mnist", epochs=1, val_size=50_000, width=8)
    assert accuracy > 0.75
    assert certified > 0.2


def test_plain_loop():
    assert load("plain_loop").main(length=10, steps=60) < 1.0


def test_finetune_transformer():
    pytest.importorskip("safetensors")
    before, after, old = load("finetune_transformer").main(steps=100)
    assert after < 0.1 < before
    assert old < 0.1
