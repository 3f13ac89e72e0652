import pytest

from spectral_param.functional.native import library


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Compiled once for all tests here."""
    cache = tmp_path_factory.mktemp("cache")
    path = library.build(cache)
    library.loaded.clear()
    return path


@pytest.fixture
def _native(folder):
    library.build(folder.parent)
    yield
    library.loaded.clear()
