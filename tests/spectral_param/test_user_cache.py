import os
import pwd
from pathlib import Path

import pytest

from spectral_param.user_cache import is_ours, user_cache


@pytest.mark.parametrize("named", [None, "", "here", "./here", "~/here"])
def test_a_variable_that_is_no_absolute_path_counts_as_not_set(named, monkeypatch):
    own = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache"
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
        if named is not None:
            monkeypatch.setenv(name, named)
    assert user_cache() == own
    monkeypatch.setenv("HOME", "/some/home")
    assert user_cache() == Path("/some/home/.cache")
    monkeypatch.setenv("XDG_CACHE_HOME", "/some/cache")
    assert user_cache() == Path("/some/cache")


def test_without_a_home_folder_the_variable_is_named(monkeypatch):
    def unknown(user):
        raise KeyError(f"no user {user}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="HOME: expected an absolute path"):
        user_cache()


@pytest.mark.parametrize(("mode", "ours"), [(0o700, True), (0o755, True), (0o770, False), (0o707, False)])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_others_can_write_to_is_not_ours(mode, ours, kind, tmp_path):
    path = tmp_path / kind
    path.touch() if kind == "file" else path.mkdir()
    path.chmod(mode)
    assert is_ours(path) is ours


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_owns_or_links_to_is_not_ours(tmp_path):
    for name in ("file", "folder"):
        path, link = tmp_path / name, tmp_path / f"link to {name}"
        path.touch() if name == "file" else path.mkdir()
        link.symlink_to(path)
        assert is_ours(link) is (name == "folder")
        os.chown(link, 12345, 12345, follow_symlinks=False)
        assert not is_ours(link)
        os.chown(path, 12345, 12345)
        assert not is_ours(path)
