import sys

import pytest
import torch
from torch import nn

from benchmarks import certified


def test_every_library_that_is_here_has_a_row(small_mnist, monkeypatch, capsys):
    arguments = "--val-size 40 --epochs 1 --seeds 1 --width 2 --lr 1e-3 1e-2 --seconds 0"
    monkeypatch.setattr(sys, "argv", ["certified", str(small_mnist), *arguments.split()])
    certified.main()
    table, steps = capsys.readouterr().out.split("\n\n")
    titles, _, *rows = table.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == list(certified.libraries())
    assert {row.count("|") for row in rows} == {titles.count("|")}
    assert len({line.count("|") for line in steps.splitlines()}) == 1
    ours = [cell.strip() for cell in rows[1].split("|")]
    assert float(ours[9]) == pytest.approx(1.0, abs=1e-4)
    assert float(ours[10]) <= 1.0001


def test_the_norm_is_that_of_the_operator():
    torch.manual_seed(0)
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    assert certified.norm(layer, x) == pytest.approx(torch.linalg.matrix_norm(layer.weight, 2).item(), rel=1e-4)


def test_a_linear_network_is_as_steep_as_its_matrix():
    torch.manual_seed(0)
    layer = nn.Linear(4, 10)
    expected = torch.linalg.matrix_norm(layer.weight, 2).item()
    assert certified.constants(nn.Sequential(layer), torch.randn(5, 4)) == pytest.approx((expected, expected), rel=1e-4)
