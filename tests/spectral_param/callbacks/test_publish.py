"""What is written and loaded for the page about a run, and when."""

import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
import lightning.pytorch, torch.utils.tensorboard  # both load matplotlib themselves where it is installed
for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
    del sys.modules[name]
import spectral_param.callbacks as callbacks
from lightning_modules import cli
for module in pkgutil.walk_packages(callbacks.__path__, "spectral_param.callbacks."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.startswith("matplotlib")))
from spectral_param.callbacks import figures
from spectral_param.callbacks.figures import margin_gradient_loss_figure
print(figures.margin_gradient_loss_figure is margin_gradient_loss_figure, "matplotlib" in sys.modules)
"""

REPORT = """
import importlib, pkgutil, sys
import spectral_param.report as report
for module in pkgutil.walk_packages(report.__path__, "spectral_param.report."):
    importlib.import_module(module.name)
print(sorted(name for name in sys.modules if name.startswith("lightning")))
"""


def output_of(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()


def test_no_callback_loads_matplotlib_before_a_picture_is_drawn():
    assert output_of(CODE) == ["[]", "True True"]


def test_a_report_needs_no_lightning():
    assert output_of(REPORT) == ["[]"]
