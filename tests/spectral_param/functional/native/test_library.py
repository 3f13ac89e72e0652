import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spectral_param.functional import native
from spectral_param.functional.native import library

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


@pytest.fixture
def loads(folder, monkeypatch):
    """What is loaded, where compiling is copying what was compiled before."""
    seen, load = [], ctypes.CDLL

    def compile_anew(compiler, path):
        path.unlink(missing_ok=True)
        shutil.copy(folder, path)

    monkeypatch.setattr(library, "_compile", compile_anew)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (seen.append(Path(name)), load(name))[1])
    yield seen
    library._loaded.clear()


@pytest.fixture
def name(folder) -> str:
    return folder.name


def is_private(place: Path) -> bool:
    return place.stat().st_mode & 0o077 == 0 and place.stat().st_uid == os.geteuid()


@pytest.mark.parametrize("named", ["", "here", "./here"])
def test_a_cache_folder_that_is_empty_or_relative_is_not_the_current_folder(named, name, loads, monkeypatch, tmp_path):
    home, here = tmp_path / "home", tmp_path / "shared"
    for planted in (here / "spectral_param" / name, here / "here" / "spectral_param" / name):
        planted.parent.mkdir(parents=True, mode=0o755)
        planted.write_text("planted")
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", named)
    monkeypatch.setenv("HOME", str(home))
    assert native.build() == home / ".cache" / "spectral_param" / name
    assert loads == [home / ".cache" / "spectral_param" / name]
    assert is_private(home / ".cache" / "spectral_param")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
@pytest.mark.parametrize("given", [True, False])
def test_nothing_is_loaded_from_a_folder_that_others_can_write_to(mode, given, name, loads, monkeypatch, tmp_path):
    place = tmp_path / "spectral_param"
    place.mkdir()
    place.chmod(mode)
    (place / name).write_text("planted")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = native.build(place if given else None)
    assert place not in found.parents
    assert is_private(found.parent)
    assert native.build(place) == found  # once a process
    assert set(loads) == {found}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("whose", ["folder", "library"])
def test_nothing_is_loaded_that_belongs_to_another_user(whose, name, loads, tmp_path):
    place = tmp_path / "cache"
    place.mkdir()
    (place / name).write_text("planted")
    os.chown(place if whose == "folder" else place / name, 12345, 12345)
    found = native.build(place)
    assert found.read_text("latin1") != "planted"
    assert (place in found.parents) == (whose == "library")
    assert found.stat().st_uid == 0
    assert loads == [found]


@pytest.mark.parametrize("mode", [0o666, 0o775, 0o702])
def test_a_library_that_others_could_change_is_built_anew(mode, name, loads, tmp_path, folder):
    place = tmp_path / name
    place.write_text("planted")
    place.chmod(mode)
    assert native.build(tmp_path) == place
    assert loads == [place]
    assert place.read_bytes() == folder.read_bytes()


def test_a_link_in_the_place_of_the_library_is_not_followed(name, loads, tmp_path, folder):
    (tmp_path / "elsewhere").write_text("planted")
    place = tmp_path / "cache"
    place.mkdir()
    (place / name).symlink_to(tmp_path / "elsewhere")
    linked = tmp_path / "linked"  # a folder elsewhere is fine
    linked.symlink_to(place)
    library_of = native.build(linked)
    assert loads == [library_of]


def test_a_library_is_loaded_after_a_umask_that_lets_the_group_write(name, tmp_path, monkeypatch):
    before = os.umask(0o002)
    try:
        path = native.build(tmp_path / "new")
    finally:
        os.umask(before)
    assert is_private(path.parent)
    monkeypatch.setattr(library, "_compile", lambda *_: pytest.fail("compiled again"))
    assert native.build(tmp_path / "new") == path
    library._loaded.clear()


@pytest.mark.parametrize("given", [True, False])
def test_a_folder_that_cannot_be_written_is_named_with_the_remedy(given, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "spectral_param"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match=rf"build: expected a folder to write to .* {place} .*; folder= takes anoth"):
        native.build(place if given else None)


def test_a_read_only_folder_is_named_with_the_remedy(monkeypatch, tmp_path):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")  # as root can write everywhere

    monkeypatch.setattr(library.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(RuntimeError, match=rf"got {tmp_path} \(.*Permission denied\); folder= takes another"):
        native.build(tmp_path)
    assert not native.is_loaded()


ASCII = """
import sys
from spectral_param import native
try:
    native.build(sys.argv[1])
except RuntimeError as error:
    print(ascii(str(error)))
"""


def test_a_compiler_that_fails_is_told_under_an_ascii_locale(tmp_path):
    compiler = tmp_path / "compilér"
    compiler.write_text("#!/bin/sh\nprintf 'nicht g\\303\\274ltig \\377' >&2\nexit 1\n", encoding="utf8")
    compiler.chmod(0o755)
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "CXX": str(compiler)}
    command = [sys.executable, "-c", ASCII, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **locale})
    assert "nicht g\\xfcltig \\ufffd" in done.stdout, done.stderr


def test_the_path_of_a_compiler_may_have_a_space(tmp_path, monkeypatch):
    compiler = tmp_path / "my tools" / "c++"
    compiler.parent.mkdir()
    compiler.symlink_to(shutil.which("c++"))
    for command in (str(compiler), f"'{compiler}' -g0"):
        monkeypatch.setenv("CXX", command)
        assert native.build(tmp_path / "cache").stat().st_size > 0
    assert len(list((tmp_path / "cache").iterdir())) == 2
    library._loaded.clear()


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_compiler_is_none(empty, monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr(library, "_compile", lambda compiler, path: seen.append(compiler))
    monkeypatch.setenv("CXX", empty)
    with pytest.raises(RuntimeError, match="build: expected a folder"):  # nothing is there to be loaded
        native.build(tmp_path)
    assert seen == ["c++"]


@pytest.mark.parametrize(("compiler", "said"), [("'c++", "expected a C\\+\\+ compiler at"), ("true", "true failed")])
def test_a_compiler_that_makes_nothing_is_told(compiler, said, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(RuntimeError, match=f"build: {said}"):
        native.build(tmp_path)
    assert not list(tmp_path.iterdir())
