"""The wheel, built and used where nothing of the repository is on the path."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import spectral_param
from tests.bare import bare_environment

ROOT = Path(__file__).parents[1]
PACKAGES = ("spectral_param", "lightning_modules", "datamodules")
BEGINNING = """
import torch
from spectral_param import plain_state_dict, register_svd_parametrization, spectral_norm
from spectral_param.report.recorder import SpectralRecorder

model = torch.nn.Sequential(register_svd_parametrization(torch.nn.Linear(6, 4)), torch.nn.ReLU())
recorder = SpectralRecorder(model)
compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
x = torch.randn(3, 6)
torch.testing.assert_close(compiled(x), model(x))
compiled(x).sum().backward()
recorder.step()
assert len(recorder.history) == 1

torch.save(model.state_dict(), "checkpoint.pt")
again = torch.nn.Sequential(register_svd_parametrization(torch.nn.Linear(6, 4)), torch.nn.ReLU())
again.load_state_dict(torch.load("checkpoint.pt", weights_only=True))
assert spectral_norm(again[0]) == spectral_norm(model[0])
torch.save(plain_state_dict(model), "plain.pt")
"""


SHIPPED = {".py", ".typed", ".cpp", ".h"}
BESIDE = {"pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with an sdist and the wheel made of it; from a copy, since the next build takes in what one leaves."""
    folder = tmp_path_factory.mktemp("built")
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        shutil.copy(ROOT / name, folder)
    subprocess.run([sys.executable, "-m", "build"], cwd=folder, check=True, capture_output=True)
    return folder / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob(f"spectral_param-{spectral_param.__version__}-py3-none-any.whl"))


def sources() -> set[str]:
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    return {str(path.relative_to(ROOT)) for path in files if path.suffix in SHIPPED}


def test_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == sources()


def test_sdist_holds_the_packages_and_what_tells_of_them(dist):
    [built] = dist.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {name for name in names if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert names - made == sources() | BESIDE


def test_an_index_takes_what_is_built(dist):
    pytest.importorskip("twine", reason="needs the extra [dev]")
    command = [sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_agree():
    released = re.findall(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert released[0] == spectral_param.__version__
    assert f"\nversion: {spectral_param.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """With nothing of the repository on the path of modules."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})


def test_wheel_is_imported_from_a_clean_environment(wheel, tmp_path):
    """A new environment with the wheel, and beside it what the wheel's extras bring."""
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "env" / "lib" / version / "site-packages"
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    code = "; ".join(f"import {p}; print({p}.__file__)" for p in PACKAGES)
    for package, file in zip(PACKAGES, run(tmp_path, python, "-c", code).stdout.split(), strict=True):
        assert Path(file) == site / package / "__init__.py"


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Path:
    return bare_environment(tmp_path_factory.mktemp("bare"), wheel)


def test_the_core_works_where_torch_is_all_there_is(bare, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    first = next(block for block in blocks if "register_svd_parametrization" in block)
    # torch says the first without NumPy, the second of the first Python 3.13
    advice = ("-W", "ignore:Failed to initialize NumPy", "-W", "ignore:Guards may run slower")
    done = run(tmp_path, bare / "python", "-W", "error", *advice, "-c", first + BEGINNING)
    assert done.returncode == 0, done.stderr
    done = run(tmp_path, bare / "spectral-param", "inspect", "plain.pt")
    assert done.returncode == 0, done.stderr
    assert "0.weight" in done.stdout


def test_an_import_that_lacks_a_package_names_the_extra(bare, tmp_path):
    names = {
        "import spectral_param.callbacks": "lightning",
        "from spectral_param.callbacks.monitor import SpectralMonitor": "lightning",
        "from spectral_param.bounds import MarginLoss": "lightning",
        "from spectral_param.report import figures": "plot",
        "from spectral_param.report.page import rebuild": "plot",
        "import lightning_modules": "tasks",
        "from datamodules import AddingProblem": "tasks",
    }
    code = "\n".join(f"try:\n    {line}\nexcept ModuleNotFoundError as error:\n    print(error)" for line in names)
    said = run(tmp_path, bare / "python", "-c", code).stdout.splitlines()
    for line, name in zip(said, names.values(), strict=True):
        assert re.fullmatch(rf'\w+ is not installed: pip install "spectral-param\[{name}\]" brings it\.', line)


def test_the_command_names_the_extra(bare, tmp_path):
    for command in (["spectral-param"], ["python", "-m", "spectral_param"]):
        for words, name in ((["fit", "--config", "adding.yaml"], "tasks"), (["report", "."], "plot")):
            done = run(tmp_path, bare / command[0], *command[1:], *words)
            assert done.returncode == 2
            assert f"spectral-param[{name}]" in done.stderr
            assert "Traceback" not in done.stderr


def test_the_core_needs_torch_alone():
    code = (
        "import sys, torch; before = set(sys.modules); import spectral_param, spectral_param.functional, "
        "spectral_param.nn; print({m.split('.')[0] for m in set(sys.modules) - before if 'torch' not in m})"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "lightning" not in run.stdout
    assert "matplotlib" not in run.stdout
