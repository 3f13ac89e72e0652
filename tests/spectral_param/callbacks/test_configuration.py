"""The callbacks in a YAML file of LightningCLI."""

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningArgumentParser

import spectral_param.callbacks as callbacks
from tests.versions import configured_bars

CASES = [
    ("SpectralMonitor", {"dense": ["head.*"], "every_n_steps": 10, "prog_bar": True, "statistics": ["sigma_max"]}),
    ("SpectralMonitor", {"weights": "rnn.*", "per_gate": True}),
    ("SpectralClip", {"min": 0.5, "max": 2.0, "weights": "rnn.*", "renormalize": True}),
    ("SpectralPenalty", {"weight": 0.01, "center": 0.5}),
    ("BandSchedule", {"radius": {0: 0.01, 100: 0.1}, "interval": "epoch"}),
    ("GradientNormMonitor", {"times": [0, -1], "layers": "encoder.0"}),
    ("GradientNormMonitor", {"times": 32}),
    pytest.param("SpectralProgressBar", {"every_n_steps": 5, "leave": True}, marks=configured_bars),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_is_made_from_a_configuration(name, options):
    parser = LightningArgumentParser()
    parser.add_argument("--callback", type=Callback)
    given = {"callback": {"class_path": f"spectral_param.callbacks.{name}", "init_args": options}}
    made = parser.instantiate_classes(parser.parse_object(given)).callback
    assert type(made) is getattr(callbacks, name)
    for option, value in options.items():
        if name != "SpectralProgressBar" or option == "every_n_steps":
            found = getattr(made, option)
            assert found == value or list(found) == [value] or list(found) == value
