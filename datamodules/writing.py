"""Writing files that appear under their name only when they are whole."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Gives a place to write a file to, and moves it to ``path`` when it is whole.

    The place is beside ``path``, so that moving is one step, and of this process alone. Where writing fails, nothing is
    left, and what was there before stays.

    Args:
        path: where the file shall be; its folder is made.

    Raises:
        OSError: if the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "new" / "file"
        >>> with written(path) as place:
        ...     _ = place.write_text("whole")
        ...     path.exists()
        False
        >>> path.read_text()
        'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=".") as folder:
        place = Path(folder) / path.name
        yield place
        place.replace(path)


@contextmanager
def held(part: Path) -> Iterator[None]:
    """Keeps a file, of which a part is written at a time, for one process or thread at a time; others wait.

    It is there meanwhile, empty at first, and is removed at the end if it is empty still. Where a file system has no
    locks, nobody waits: what is written must be checked by its length or checksum all the same.

    Args:
        part: the file, in a folder that is there.

    Raises:
        OSError: if it cannot be written to.

    Example:
        >>> import tempfile
        >>> part = Path(tempfile.mkdtemp()) / "file.part"
        >>> with held(part):
        ...     part.stat().st_size
        0
        >>> part.exists()
        False
    """
    with contextlib.ExitStack() as stack:
        if sys.platform == "win32":  # where a file that is open cannot be moved
            part.touch()
        else:
            while not _locked(stack.enter_context(part.open("ab")), part):
                pass  # it was moved or removed as we waited
        ours = part.stat()
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):  # or another's, who came as soon as ours had been moved
                if (there := part.stat()).st_size == 0 and os.path.samestat(ours, there):
                    part.unlink()


def _locked(file: BinaryIO, path: Path) -> bool:
    """Waits for an open file, and answers whether it still is the one of that name."""
    import fcntl  # not on Windows

    with contextlib.suppress(OSError):  # some network file systems have no locks
        fcntl.flock(file, fcntl.LOCK_EX)
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
