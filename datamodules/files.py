"""Files of data sets: finding them, fetching the ones that are missing, and reading them whole."""

import codecs
import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from datamodules.downloads import fetch


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


def text_of(content: bytes, path: Path) -> str:
    r"""Decodes what was read of a text in UTF-8, with a byte-order mark or without.

    Raises:
        ValueError: if it is in another encoding; it names the ``path``, the line and the byte.

    Example:
        >>> text_of("\ufeffé".encode(), Path("train.txt"))
        'é'
        >>> text_of("no\né".encode("latin1"), Path("train.txt"))
        Traceback (most recent call last):
        ValueError: train.txt: expected a text in UTF-8, got the byte 0xe9 in line 2, at position 3; save it as UTF-8.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    wrong = content.find(0)  # as in UTF-16
    text = ""
    try:
        text = content.decode("utf8")
    except UnicodeDecodeError as error:
        wrong = error.start
    if wrong >= 0:
        line = content.count(b"\n", 0, wrong) + 1
        raise ValueError(
            f"{path}: expected a text in UTF-8, got the byte 0x{content[wrong]:02x} in line {line}, "
            f"at position {wrong}; save it as UTF-8."
        )
    return text


def read_lines(path: Path) -> list[str]:
    """Reads the lines of a text in UTF-8, extracted if it ends in ``.gz``, whatever system's ends of lines it has.

    Raises:
        ValueError: if a ``.gz`` is damaged, or the text is in another encoding.
    """
    return re.split("\r\n|\r|\n", text_of(read_file(path), path))
