"""A line on the terminal that says how far a long work has come, and goes again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET = 5.0  # seconds in which nothing is said


@contextmanager
def progress_line(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Writes ``what 12/48 …`` to stderr where that is a terminal, once five seconds have passed; clears it at the end.

    Args:
        what: is being done.
        total: how often.

    Yields:
        A function to be called with the number of what comes next, from 1 on.

    Example:
        >>> from spectral_param.registration.progress_line import progress_line
        >>> with progress_line("registering", 2) as tell:
        ...     for i in range(2):
        ...         tell(i + 1)
    """
    begin, written = time.monotonic(), ""

    def tell(i: int) -> None:
        nonlocal written
        if time.monotonic() - begin > _QUIET and sys.stderr is not None and sys.stderr.isatty():
            written = f"{what} {i}/{total} ..."
            print(f"\r{written}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if written:
            print(f"\r{' ' * len(written)}\r", end="", file=sys.stderr, flush=True)
