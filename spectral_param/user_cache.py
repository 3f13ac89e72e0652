"""Where the user's caches lie, and whether what lies there is the user's alone."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path


def user_cache() -> Path:
    """The folder of the user's caches: ``XDG_CACHE_HOME``, or ``.cache`` in the home folder.

    By the standard of both, a variable that is empty or relative counts as not set: a name below the current folder
    would be whoever's that folder is. Without ``HOME``, the home folder is that of the user database.

    Raises:
        RuntimeError: if there is no home folder either.

    Example:
        >>> from spectral_param.user_cache import user_cache
        >>> user_cache().is_absolute()
        True
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return named if named.is_absolute() else _home() / ".cache"


def is_ours(path: Path) -> bool:
    """Whether a file or a folder belongs to this user or the system's, and others cannot write to it.

    A link to a file is not ours: who may change what it names is not known. Where files have no such owners (Windows),
    all are.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from spectral_param.user_cache import is_ours
        >>> folder = Path(tempfile.mkdtemp())
        >>> is_ours(folder)
        True
        >>> folder.chmod(0o777)
        >>> is_ours(folder)
        False
    """
    if sys.platform == "win32":
        return True
    found, named = path.stat(), path.lstat()
    known = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(named.st_mode)
    owners = {found.st_uid, named.st_uid}
    return known and owners <= {os.geteuid(), 0} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _home() -> Path:
    if sys.platform == "win32":
        return Path.home()
    import pwd  # not on Windows

    named = Path(os.environ.get("HOME", ""))
    if named.is_absolute():
        return named
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError as error:
        raise RuntimeError("HOME: expected an absolute path, got none, and the user has no home folder.") from error
