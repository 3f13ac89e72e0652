import errno
import warnings
from dataclasses import replace

import pytest
import torch

from lightning_modules.reproduce import last_epoch
from lightning_modules.reproduce.last_epoch import LastEpoch, to_go_on_from
from lightning_modules.reproduce.train import train
from tests.lightning_modules.reproduce.test_train import RUN

# what an interrupted run goes on from
pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning")


@pytest.fixture
def checkpoints(tmp_path):
    for name in ("last.ckpt", "best.ckpt"):
        torch.save({"state_dict": {"w": torch.randn(50)}}, tmp_path / name)
    return tmp_path / "last.ckpt", tmp_path / "best.ckpt"


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def turn_a_bit(path):
    content = bytearray(path.read_bytes())
    weights = torch.load(path)["state_dict"]["w"].numpy().tobytes()
    content[content.index(weights)] ^= 1
    path.write_bytes(content)


def remove(path):
    path.unlink()


def test_whole_checkpoints_are_gone_on_from(checkpoints, tmp_path):
    assert to_go_on_from(*checkpoints) == tmp_path / "last.ckpt"
    checkpoints[0].unlink()
    assert to_go_on_from(*checkpoints) is None


@pytest.mark.parametrize("damage", [cut, empty, turn_a_bit, remove])
@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_checkpoint_is_named_and_set_aside(checkpoints, damage, which, tmp_path):
    if damage is remove and which == 0:
        pytest.skip("is no damage: the run begins")
    damage(checkpoints[which])
    with pytest.warns(UserWarning, match=f"{checkpoints[which]}: expected a whole checkpoint, got"):
        assert to_go_on_from(*checkpoints) is None
    left = {"last.ckpt.damaged", "best.ckpt.damaged"} - ({"best.ckpt.damaged"} if damage is remove else set())
    assert {path.name for path in tmp_path.iterdir()} == left
    assert to_go_on_from(*checkpoints) is None  # without a warning: it was set aside


def test_a_run_whose_last_checkpoint_is_damaged_begins_anew(tmp_path, monkeypatch):
    run = replace(RUN, trainer={**RUN.trainer, "max_epochs": 2})
    monkeypatch.setattr(last_epoch, "SECONDS", 0.0)
    whole = train(run, tmp_path, tmp_path / "run")
    cut(tmp_path / "run" / "last.ckpt")
    with pytest.warns(UserWarning, match="last.ckpt: expected a whole checkpoint, got a damaged one"):
        again = train(run, tmp_path, tmp_path / "run")
    assert replace(again, seconds=0.0) == replace(whole, seconds=0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*expected a whole checkpoint")
        train(run, tmp_path, tmp_path / "run")


def test_a_full_disk_leaves_the_last_checkpoint_as_it_was(tmp_path):
    class Trainer:
        def save_checkpoint(self, path):
            path.write_text("half")
            raise OSError(errno.ENOSPC, "no space left")

    (tmp_path / "last.ckpt").write_text("before")
    saver = LastEpoch(tmp_path / "last.ckpt")
    saver._saved -= 100
    with pytest.raises(OSError, match="no space left"):
        saver.on_train_epoch_end(Trainer(), None)
    (path,) = tmp_path.iterdir()
    assert path.read_text() == "before"
