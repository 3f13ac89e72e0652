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


def test_a_row_that_is_not_of_these_contents_is_made_again(folder):
    make = Counted()
    other = {"words": ["x"], "tokens": torch.tensor([1]), "none": torch.tensor([2])}
    cached(lambda: other, b"other")
    (path,) = folder.iterdir()
    cached(make, b"one")
    (mine,) = set(folder.iterdir()) - {path}
    mine.write_bytes(path.read_bytes())  # a whole file of ours, of other contents
    assert_is_rows(cached(make, b"one"))
    assert make.calls == 2


def test_content_that_is_not_ours_is_made_again(folder):
    from datasets.arrow_writer import ArrowWriter

    make = Counted()
    cached(make, b"one")
    (path,) = folder.iterdir()
    for row in (ROWS, {**ROWS, "sha256": "0" * 64}, {"text": "something else"}):
        path.unlink()
        with ArrowWriter(path=str(path)) as writer:
            writer.write(row)
            writer.finalize()
        calls = make.calls
        assert_is_rows(cached(make, b"one"))
        assert make.calls == calls + 1


def test_a_byte_that_was_changed_is_noticed(folder):
    make = Counted()
    cached(make, b"one")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        row = cached(make, b"one")
        assert_is_rows(row)
        assert row.keys() == ROWS.keys()


@pytest.mark.parametrize("named", ["huggingface/datasets", "", "./cache"])
def test_a_cache_folder_that_is_relative_is_not_the_current_folder(named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", Path(named))
    cached(Counted(), b"one")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    assert len(list((tmp_path / "home" / "huggingface" / "datasets" / "spectral_param").iterdir())) == 1
