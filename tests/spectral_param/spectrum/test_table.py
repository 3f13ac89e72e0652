import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from spectral_param import Fixed, Positive, register_svd_parametrization, spectral_table


def model():
    layers = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.GRU(3, 4), nn.Linear(4, 4))
    layers[0].weight.data = torch.diag(torch.tensor([3.0, 2.0, 0.5])) @ torch.eye(3, 5)
    register_svd_parametrization(layers[0], train="sigma")
    register_svd_parametrization(
        layers[2], "weight_hh_l0", chunks=3, reflectors=(2, 1), sigma=Positive(), init="orthogonal"
    )
    register_svd_parametrization(layers[3], reflectors=(2, 2), sigma=Fixed(), init="orthogonal")
    return layers


def test_rows():
    first, second, third = spectral_table(model(), center=2.0)
    assert first == {
        "weight": "0.weight",
        "blocks": 1,
        "shape": (3, 5),
        "reflectors": (3, 3),
        "sigma": "Unconstrained()",
        "min": pytest.approx(0.5),
        "max": pytest.approx(3.0),
        "margin": pytest.approx(1.5),
        "trained": 3,
    }
    assert (second["weight"], second["blocks"], second["shape"]) == ("2.weight_hh_l0", 3, (4, 4))
    assert second["trained"] == 3 * (7 + 4 + 4)
    assert third["sigma"] == "Fixed(value=1.0)"
    assert third["trained"] == 14


def test_printing():
    lines = str(spectral_table(model())).splitlines()
    assert lines[0].split() == list(spectral_table(model())[0])
    assert lines[1].split() == ["0.weight", "1", "3×5", "3,", "3", "Unconstrained()", "0.5", "3", "2", "3"]
    assert lines[-1].split() == ["total", "62"]
    assert len({len(line) for line in lines}) == 1


def test_printing_where_the_terminal_has_no_letter_for_it():
    code = """if True:
        from torch import nn
        from spectral_param import register_svd_parametrization, spectral_table
        model = nn.ModuleDict({"straße": register_svd_parametrization(nn.Linear(5, 3))})
        print(spectral_table(model))
    """
    environment = {**os.environ, "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split()[:3] == [r"stra\xdfe.weight", "1", "3x5"]


def test_a_model_without_registered_weights():
    assert spectral_table(nn.Linear(2, 2)) == []
    assert str(spectral_table(nn.Linear(2, 2))) == "no weight is registered"


def _rows_of_shards(rank):
    layers = model()
    before = spectral_table(layers)
    fully_shard(layers, mesh=init_device_mesh("cpu", (2,)))
    return before, spectral_table(layers)


def test_sharded_models_are_read_whole(two_processes):
    for before, after in two_processes(_rows_of_shards):
        assert after == before


def test_plain_weights_are_listed_with_the_shape_of_their_spectrum():
    model = nn.Sequential(register_svd_parametrization(nn.Linear(6, 4)), nn.Conv2d(3, 8, 2), nn.LayerNorm(4))
    rows = {row["weight"]: row for row in spectral_table(model, dense=True)}
    assert list(rows) == ["0.weight", "1.weight"]
    sigma = torch.linalg.svdvals(model[1].weight.detach().flatten(1))
    row = rows["1.weight"]
    assert (row["shape"], row["sigma"], row["trained"]) == ((8, 12), "plain", 96)
    assert row["max"] == pytest.approx(sigma[0].item())
    assert row["stable_rank"] == pytest.approx((sigma.square().sum() / sigma[0] ** 2).item())
    assert set(rows["0.weight"]) == set(row)
    assert "8×12" in str(spectral_table(model, dense="1.*"))
    with pytest.raises(TypeError, match="dense: expected a name pattern"):
        spectral_table(model, dense=3)
