"""A checkpoint that was written when the library was one flat folder."""

from pathlib import Path

import torch
from torch import nn

from spectral_param import Band, register_svd_parametrization

FILE = Path(__file__).with_name("files") / "state_before_storeys.pt"


def model():
    """As it was when the file was written."""
    model = nn.ModuleDict(
        {
            "exact": nn.Linear(5, 4),
            "few": nn.Linear(12, 12),
            "one_side": nn.Linear(6, 6),
            "gates": nn.LSTM(3, 4),
            "kernel": nn.Conv2d(4, 6, 3, groups=2),
            "levels": nn.Linear(4, 4),
            "frozen": nn.Linear(8, 8),
        }
    )
    register_svd_parametrization(model["exact"])
    register_svd_parametrization(model["few"], reflectors=3, sigma=Band(0.1), init="orthogonal")
    register_svd_parametrization(model["one_side"], reflectors=(2, 0), init="orthogonal")
    register_svd_parametrization(model["gates"], "weight_hh_l0", chunks=4)
    register_svd_parametrization(model["kernel"], chunks=2)
    band = Band(torch.full((4,), 0.5), torch.zeros(4))
    register_svd_parametrization(model["levels"], sigma=band, init="orthogonal")
    register_svd_parametrization(model["frozen"], train="sigma")
    return model


def test_it_loads_strictly_and_gives_the_same_weights():
    saved = torch.load(FILE, weights_only=True)
    loaded = model()
    report = loaded.load_state_dict(saved["state"])
    assert not report.missing_keys
    assert not report.unexpected_keys
    for name, weight in saved["weights"].items():
        found = getattr(loaded[name], "weight_hh_l0" if name == "gates" else "weight")
        torch.testing.assert_close(found, weight, rtol=0, atol=2e-6)


def test_the_keys_are_the_same():
    assert list(model().state_dict()) == list(torch.load(FILE, weights_only=True)["state"])
