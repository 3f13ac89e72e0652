"""Warnings that point to the user's own line."""

from __future__ import annotations

import sys
import warnings

_PASSED_OVER = ("torch", "spectral_param", "warnings", "contextlib", "copy", "copyreg", "pickle")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warns with the nearest line that is neither torch's nor ours, so that Python tells one place from another.

    Args:
        message: what is told.
        category: of the warning.

    Warns:
        UserWarning: with the message, or the category given.

    Example:
        >>> import warnings
        >>> from spectral_param.torch_state.users_line import warn
        >>> with warnings.catch_warnings(record=True) as told:
        ...     warnings.simplefilter("always")
        ...     warn("so it is")
        >>> told[0].message.args
        ('so it is',)
    """
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_OVER:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth + 1)
