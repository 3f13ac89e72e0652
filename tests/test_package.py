"""The wheel, built and used where nothing of the repository is on the path."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("spectral_param", "lightning_modules", "datamodules")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    [built] = folder.glob("spectral_param-*.whl")
    return built


def test_wheel_holds_every_module_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert sources <= names
    assert "spectral_param/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)


def test_wheel_is_imported_from_a_clean_environment(wheel, tmp_path):
    """A new environment with the wheel, and beside it only what the wheel depends on."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    code = "; ".join(f"import {p}; print({p}.__file__)" for p in PACKAGES)
    run = subprocess.run([python, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    for package, file in zip(PACKAGES, run.stdout.split(), strict=True):
        assert Path(file) == site / package / "__init__.py"


def test_the_core_needs_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import spectral_param, spectral_param.functional, "
        "spectral_param.nn; print({m.split('.')[0] for m in set(sys.modules) - before if 'torch' not in m})"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "lightning" not in run.stdout
    assert "matplotlib" not in run.stdout
