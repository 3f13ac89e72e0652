"""Compiling the C++ sources beside this file once into a cache folder, and loading them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from spectral_param.torch_state.private import dispatch_modes
from spectral_param.user_cache import is_ours, user_cache

SOURCES = tuple(Path(__file__).with_name(name) for name in ("scan.cpp", "low_rank.cpp"))
HEADERS = tuple(Path(__file__).with_name(name) for name in ("activation.h", "flushed.h", "tile.h"))
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-math-errno", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
LANES = 16
"""Numbers of a vector: sides must be multiples of it."""
loaded: list[ctypes.CDLL] = []


def build(folder: str | os.PathLike[str] | None = None) -> Path:
    """Compiles the native forms, if they are not there from an earlier call, and uses them in this process from now on.

    In float32 on the CPU, recurrent layers then take the native scan where their size is a multiple of 16, and weights
    with at most half as many reflectors a side as σ are built natively where both sides are multiples of 16 up to 256;
    results change by rounding alone. Needs a C++ compiler (``CXX``, or ``c++``) of gcc's or clang's kind, and some
    seconds the first time.

    What is loaded runs with all your rights. So a library that is another user's, or that others could change, is built
    anew; in a folder that is another user's, or that others can write to (``chmod go-w`` ends that), nothing is loaded
    or kept, and the library is built in a temporary folder of this process.

    Args:
        folder: where to keep it; ``None``: ``spectral_param`` in ``XDG_CACHE_HOME``, where that is an absolute path, or
            in ``~/.cache``. It is made, for this user alone, if it is not there.

    Returns:
        The library file.

    Raises:
        RuntimeError: if there is no compiler, or it fails, with what it said; or if the folder cannot be written to or
            loaded from.

    Example:
        >>> import spectral_param.native
        >>> path = spectral_param.native.build()  # doctest: +SKIP
    """
    compiler = os.environ.get("CXX", "").strip() or "c++"
    place = user_cache() / "spectral_param" if folder is None else Path(folder).absolute()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(place):
            place = _private_folder()
        path = place / f"native-{_fingerprint(compiler)}.so"
        found = _load(path)
        if found is None:
            _compile(compiler, path)
            found = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeError(
            f"build: expected a folder to write to and load from, got {place} ({error}); folder= takes another."
        ) from error
    loaded[:] = [found]
    return path


def is_loaded() -> bool:
    """Whether :func:`build` was called in this process.

    Example:
        >>> from spectral_param.native import is_loaded
        >>> is_loaded() in (True, False)
        True
    """
    return bool(loaded)


def is_plain(tensor: Tensor) -> bool:
    """Whether memory is all there is to a tensor: float32 on the CPU, and nothing that looks on as torch computes.

    Example:
        >>> import torch
        >>> from spectral_param.functional.native.library import is_plain
        >>> [is_plain(torch.zeros(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
        [True, False]
    """
    plain = type(tensor) in (Tensor, Parameter) and tensor.dtype == torch.float32 and tensor.device.type == "cpu"
    return plain and (torch.compiler.is_compiling() or dispatch_modes() == 0)


def in_memory(tensor: Tensor) -> Tensor:
    """Row by row, with nothing left to be done at reading."""
    return (torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor).resolve_neg().contiguous()


def library() -> ctypes.CDLL:
    """The loaded library."""
    return loaded[0]


@functools.cache
def _private_folder() -> Path:
    """A folder that nobody else can write to, until the process ends."""
    folder = tempfile.mkdtemp(prefix="spectral_param-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _load(path: Path) -> ctypes.CDLL | None:
    """The library if it is there, is one, and is ours."""
    with contextlib.suppress(OSError):
        if is_ours(path):
            return ctypes.CDLL(str(path))
    return None


def _compile(compiler: str, path: Path) -> None:
    """Into a file of another name first, so that no process ever finds half a library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        try:
            command = [compiler] if shutil.which(compiler) else shlex.split(compiler)  # a path may have spaces
            command += [*FLAGS, *map(str, SOURCES), "-o", str(made)]
            found = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:
            raise RuntimeError(f"build: expected a C++ compiler at {compiler!r}: {error}.") from error
        if found.returncode or not made.exists():
            raise RuntimeError(f"build: {compiler} failed:\n{found.stderr}")
        made.chmod(0o755)  # whatever the umask is
        made.replace(path)


def _fingerprint(compiler: str) -> str:
    """Of all that the library depends on: source, flags, compiler, and the processor that -march=native looks at."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8", "replace").splitlines() if cpuinfo.exists() else []
    processor = "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
    sources = [path.read_text("utf-8") for path in (*SOURCES, *HEADERS)]
    parts = (*sources, " ".join(FLAGS), compiler, platform.platform(), platform.machine(), processor)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
