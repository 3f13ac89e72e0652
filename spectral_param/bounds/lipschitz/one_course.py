"""Whether a forward has one course, whatever it is given: only then is what ``torch.fx`` writes down all of it."""

from __future__ import annotations

import dis
import functools
import gc
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch

_ASKS = {
    *("isinstance", "issubclass", "type", "hasattr", "callable", "__class__", "is_tensor"),
    *("is_fx_tracing", "is_tracing", "is_scripting", "is_compiling", "is_grad_enabled", "is_autocast_enabled"),
}
"""Names of what tells a tensor from what it is traced by, or tracing from running."""

_DISPATCH = {functools.singledispatch(len).dispatch.__code__}  # what every function of singledispatch asks

_NOT_LOOKED_AT = {"torch", "spectral_param", *sys.stdlib_module_names}


@contextmanager
def one_course() -> Iterator[set[CodeType]]:
    """Raises at its end if a function of the user's that ran within could have run otherwise.

    Yields:
        The code of those that ran.

    Raises:
        ValueError: if one asks for types or for tracing, catches exceptions, or draws random numbers.

    Example:
        >>> import random
        >>> from spectral_param.bounds.lipschitz.one_course import one_course
        >>> with one_course():
        ...     random.random()
        Traceback (most recent call last):
        ValueError: it draws random numbers
    """
    ran: set[CodeType] = set()
    dispatched: list[CodeType] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_LOOKED_AT:
            ran.add(frame.f_code)
        elif frame.f_code in _DISPATCH:
            dispatched.append(frame.f_code)

    lots, before, collects = _lots(), sys.getprofile(), gc.isenabled()
    gc.disable()  # what others do when it collects is no part of a forward
    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    for code in ran:
        if asked := sorted(_ASKS.intersection(code.co_names)):
            raise ValueError(f"it may have another course, since it asks by {asked[0]!r}")
        if _catches(code):
            raise ValueError("it may have another course, since it catches exceptions")
        if any(instruction.opname == "MATCH_CLASS" for instruction in dis.get_instructions(code)):
            raise ValueError("it may have another course, since it matches types")
    if dispatched:
        raise ValueError("it may have another course, since it dispatches by type")
    if lots != _lots():
        raise ValueError("it draws random numbers")


def writes_by_sign(code: CodeType) -> bool:
    """Whether there is ``+=`` or its like, which works in place, and which ``torch.fx`` writes down as ``+``.

    Example:
        >>> from spectral_param.bounds.lipschitz.one_course import writes_by_sign
        >>> def double(x):
        ...     x *= 2
        >>> writes_by_sign(double.__code__)
        True
    """
    return any(
        instruction.opname.startswith("INPLACE_")
        or (instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="))
        for instruction in dis.get_instructions(code)
    )


def reads(code: CodeType, name: str) -> bool:
    """Whether an attribute is read, by its name as it stands or in a string.

    Example:
        >>> from spectral_param.bounds.lipschitz.one_course import reads
        >>> def keep(self, x):
        ...     self.seen = x
        ...     self.count = self.count + 1
        >>> reads(keep.__code__, "seen"), reads(keep.__code__, "count")
        (False, True)
    """
    loads = (i for i in dis.get_instructions(code) if i.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")))
    return name in code.co_consts or any(instruction.argval == name for instruction in loads)


def _catches(code: CodeType) -> bool:
    """Whether there is an ``except``; a ``with`` has a handler as well, but lets go on what it is told."""
    names = [instruction.opname for instruction in dis.get_instructions(code)]
    return any("EXC_MATCH" in name for name in names) or ("POP_EXCEPT" in names and "WITH_EXCEPT_START" not in names)


def _lots() -> Any:
    """Where the generators of Python, torch and NumPy are."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), torch.get_rng_state().tolist(), None if numpy is None else repr(numpy.random.get_state())
