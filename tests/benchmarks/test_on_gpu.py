"""What the command for a GPU does, on the CPU."""

import pytest
import torch

from benchmarks import on_gpu


@pytest.mark.parametrize("way", on_gpu.WAYS)
def test_every_way_is_held_against_float64(way, monkeypatch):
    monkeypatch.setattr(on_gpu, "WAYS", {way: on_gpu.WAYS[way]})
    [row] = on_gpu.agreement("cpu", 1e-4)
    assert row["way"] == way
    assert row["close"], row


def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["on_gpu"])
    with pytest.raises(SystemExit):
        on_gpu.main()
    assert "expected a CUDA device, or --dry-run" in capsys.readouterr().err


def test_the_page_shows_what_was_found():
    side = {"agreement": [{"way": "a", "error": 1.0, "close": False}], "times": [{"work": "b", "ours": 3, "plain": 2}]}
    found = {"torch": "2", "device": "d", "tests": "passed", "highest": side, "high": side}
    assert "| a | 1.0e+00 | FAR |" in on_gpu.page(found)
    assert "| b | 3.00 | 2.00 | 1.50 |" in on_gpu.page(found)
