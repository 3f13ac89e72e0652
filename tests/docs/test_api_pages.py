"""The API pages of the site have every public name, and no name that is none."""

import importlib
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "api").glob("*.rst"))
NAMES = re.findall(
    r"^\.\. auto(?:function|class|data|module):: ([\w.]+)$", "\n".join(p.read_text() for p in PAGES), re.M
)
DOORS = (
    "spectral_param",
    "spectral_param.bounds",
    "spectral_param.callbacks",
    "spectral_param.functional",
    "spectral_param.native",
    "spectral_param.nn",
    "spectral_param.sigma",
    "lightning_modules",
    "datamodules",
)


@pytest.mark.parametrize("door", DOORS)
def test_every_public_name_has_its_place(door):
    listed = {name.rpartition(".")[2] for name in NAMES}
    assert set(importlib.import_module(door).__all__) <= listed


def test_every_place_is_of_a_name_that_is_there():
    for name in NAMES:
        room, _, last = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ImportError:
            assert hasattr(importlib.import_module(room), last), name


def test_no_name_stands_twice():
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_in_the_table_of_contents(page):
    assert page.stem == "index" or f"\n   {page.stem}\n" in (page.parent / "index.rst").read_text()
