"""An environment with a wheel, torch and what torch itself asks for, and nothing else of what is installed here."""

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def bare_environment(folder: Path, wheel: Path) -> Path:
    """Makes one in a folder, offline, in seconds: the packages of torch are links.

    Returns:
        Its folder of programs, python among them.
    """
    venv.create(folder, with_pip=False)
    programs = folder / "bin"
    command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--no-deps", "--no-index"]
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*command, str(wheel)], check=True, capture_output=True, env=without_path, cwd=folder)
    links = folder / "torch-and-its-own"
    links.mkdir()
    for path in set(_paths(needed_by("torch"))):
        (links / path.name).symlink_to(path)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "links.pth").write_text(str(links))
    return programs


def needed_by(name: str) -> set[str]:
    """A distribution and all that it requires, as far as installed here."""
    found: set[str] = set()
    waiting = {name}
    while waiting:
        name = waiting.pop()
        found.add(name)
        for line in distribution(name).requires or ():
            required = Requirement(line)
            if (required.marker is None or required.marker.evaluate({"extra": ""})) and _is_installed(required.name):
                waiting |= {required.name} - found
    return found


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _paths(names: set[str]) -> Iterator[Path]:
    """Files and folders of distributions that lie in site-packages itself."""
    for name in names:
        installed = distribution(name)
        for file in installed.files or ():
            if file.parts[0] not in ("..", "__pycache__"):
                yield Path(str(installed.locate_file(file.parts[0])))
