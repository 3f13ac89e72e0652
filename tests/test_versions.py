"""The floors of pyproject.toml are what was run."""

import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def test_the_oldest_versions_are_the_floors():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (project["optional-dependencies"][name] for name in ("lightning", "plot", "tasks", "huggingface"))
    needed = [Requirement(line) for lines in (project["dependencies"], *extras) for line in lines]
    floors = {
        need.name: Version(one.version)
        for need in needed
        for one in need.specifier
        if one.operator == ">=" and need.name != "spectral-param"
    }
    lines = (ROOT / ".ci" / "oldest.txt").read_text().partition("\n\n")[0].splitlines()[1:]
    pinned = dict(line.split("==") for line in lines)
    assert {name: Version(version) for name, version in pinned.items()} == floors
