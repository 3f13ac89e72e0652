"""Files of data sets: finding them, reading them whole, and fetching the ones that are missing."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without an answer
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


@dataclass(frozen=True)
class DataFile:
    """A file of a data set, by the names it goes by and the place it comes from.

    Args:
        name: path below the root of the data set, also that of a downloaded file.
        url: where it is downloaded from.
        sha256: checksum of what is downloaded, in hexadecimal digits.
        aliases: other paths below the root under which the file may lie.
    """

    name: str
    url: str
    sha256: str
    aliases: tuple[str, ...] = ()

    def find(self, root: Path) -> Path:
        """Returns the path of the file; raises FileNotFoundError if it is not there."""
        return find_file(root, self.name, *self.aliases)

    def prepare(self, root: Path, download: bool) -> None:
        """Downloads the file if it is not there and ``download`` is true; otherwise raises FileNotFoundError."""
        try:
            self.find(root)
        except FileNotFoundError:
            if not download:
                raise
            fetch(self.url, root / self.name, self.sha256)


def find_file(root: Path, *names: str) -> Path:
    """Finds a file under one of its names, plain or with the suffix ``.gz``.

    Args:
        root: folder of the data set.
        *names: paths below it, the usual one first.

    Returns:
        The first that is there.

    Raises:
        FileNotFoundError: if none is; it names them.

    Example:
        >>> find_file(Path("nowhere"), "train.txt")
        Traceback (most recent call last):
        FileNotFoundError: root: expected train.txt in ...nowhere, but there is neither it nor train.txt.gz.
    """
    candidates = [root / f"{name}{suffix}" for name in names for suffix in ("", ".gz")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    others = ", ".join(str(candidate.relative_to(root)) for candidate in candidates[1:])
    raise FileNotFoundError(f"root: expected {names[0]} in {root.absolute()}, but there is neither it nor {others}.")


def read_file(path: Path) -> bytes:
    """Reads a file whole, extracted if it ends in ``.gz``.

    Raises:
        ValueError: if a ``.gz`` is cut short or damaged.
    """
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path}: expected a gzip file, got a damaged one ({error}); remove it and try again."
        ) from error


def fetch(url: str, path: Path, sha256: str | None = None) -> None:
    """Downloads a file; it appears under its name only when it is whole.

    What has come so far is kept beside it as ``.part``, from which the next call goes on where the server can; a part
    that leads to a wrong checksum is dropped and the download starts again.

    Args:
        url: where the file is.
        path: where it shall be; its folder is made.
        sha256: its checksum, in hexadecimal digits; None: not checked.

    Raises:
        OSError: if the folder cannot be written to, or the download fails or breaks off.
        ValueError: if the file has another checksum. Nothing is kept of it.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.open("ab").close()
    except OSError as error:
        raise OSError(f"root: {path} is missing and cannot be written ({error}).") from error
    resumed = part.stat().st_size > 0
    try:
        _append(url, part)
    except (URLError, OSError) as error:
        if part.stat().st_size == 0:
            part.unlink()
        raise OSError(f"root: {path} is missing and {url} could not be downloaded ({error}).") from error

    found = _sha256(part)
    if sha256 is not None and found != sha256:
        part.unlink()
        if resumed:
            return fetch(url, path, sha256)
        raise ValueError(f"{url}: expected a file with the sha256 {sha256}, got {found}.")
    part.replace(path)


def _append(url: str, part: Path) -> None:
    done = part.stat().st_size
    try:
        response = urlopen(Request(url, headers={"Range": f"bytes={done}-"} if done else {}), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE:
            raise
        part.write_bytes(b"")
        return _append(url, part)
    with response, part.open("ab" if response.status == PARTIAL_CONTENT else "wb") as file:
        expected, got = response.headers.get("Content-Length"), 0
        while block := response.read(CHUNK):
            got += file.write(block)
    if expected is not None and got < int(expected):
        raise OSError(f"it broke off after {part.stat().st_size} bytes; run again to go on")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()
