import subprocess
import sys
from pathlib import Path

import pytest
import torch

from datamodules.token_cache import cached

ROWS = {"words": ["é", "b"], "tokens": torch.arange(1000), "none": torch.tensor([], dtype=torch.int64)}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / "spectral_param"


class Counted:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return dict(ROWS)


def assert_is_rows(row):
    assert row["words"] == ROWS["words"]
    assert all(torch.equal(row[name], ROWS[name]) for name in ("tokens", "none"))


def test_made_once_for_the_same_contents(folder, capfd):
    make = Counted()
    for _ in range(2):
        assert_is_rows(cached(make, b"one", b"two"))
    assert make.calls == 1
    cached(make, b"onetwo")
    cached(make, b"one", b"three")
    assert make.calls == 3
    assert [path.suffix for path in folder.iterdir()] == [".arrow"] * 3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kept", [0, 3, 300, 1000, 5000, -1])
def test_a_damaged_file_is_made_again(kept, folder):
    make = Counted()
    cached(make, b"one")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    assert_is_rows(cached(make, b"one"))
    assert make.calls == 2
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", "/dev/null")
    assert_is_rows(cached(Counted(), b"one"))


def test_what_fails_to_be_made_is_not_kept(folder):
    def make():
        raise ValueError("no such word")

    with pytest.raises(ValueError, match="no such word"):
        cached(make, b"one")
    assert not folder.exists()


def test_importing_the_data_modules_does_not_import_datasets():
    script = "import datamodules, sys; print('datasets' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
