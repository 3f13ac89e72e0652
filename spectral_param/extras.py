"""What the core does without: an import that lacks a package names the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

OURS = ("spectral_param", "lightning_modules", "datamodules")


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports within need what an extra of this package installs.

    Args:
        name: of the extra, as ``pyproject.toml`` has it.

    Raises:
        ModuleNotFoundError: where a package is missing, with the command that installs it.

    Example:
        >>> from spectral_param.extras import extra
        >>> with extra("plot"):
        ...     import no_such_package
        Traceback (most recent call last):
        ...
        ModuleNotFoundError: no_such_package is not installed: pip install "spectral-param[plot]" brings it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        raise ModuleNotFoundError(
            f'{error.name.partition(".")[0]} is not installed: pip install "spectral-param[{name}]" brings it.',
            name=error.name,
        ) from error
