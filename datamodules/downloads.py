"""Downloads that go on where they stopped."""

import hashlib
import re
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from datamodules.writing import held

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without an answer
RANGE_NOT_SATISFIABLE = 416
PARTIAL_CONTENT = 206


def fetch(url: str, path: Path, sha256: str | None = None) -> None:
    """Downloads a file that is not there; it appears under its name only when it is whole.

    What has come so far is kept beside it as ``.part``, from which the next call goes on where the server can; a part
    that leads to a wrong checksum is dropped and the download starts again. Of several processes and threads one
    downloads, and the others wait for it.

    Args:
        url: where the file is.
        path: where it shall be; its folder is made.
        sha256: its checksum, in hexadecimal digits; None: its length alone is checked, where the server tells it.

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
    with held(part):
        if path.exists():  # by another process, as we waited
            return
        resumed = part.stat().st_size > 0
        _append(url, part, path)
        found = _sha256(part)
        if resumed and sha256 not in (None, found):
            _empty(part)
            _append(url, part, path)
            found = _sha256(part)
        if sha256 not in (None, found):
            _empty(part)
            raise ValueError(f"{url}: expected a file with the sha256 {sha256}, got {found}.")
        part.replace(path)


def _append(url: str, part: Path, path: Path) -> None:
    """Adds what is missing of a part, all of it where the server does not go on."""
    try:
        start, response = _answer(url, part)
        with response, part.open("ab") as file:
            while block := response.read(CHUNK):
                file.write(block)
        length, size = response.headers.get("Content-Length"), part.stat().st_size
        if length is not None and size < start + int(length):
            raise OSError(f"it broke off after {size} bytes; run again to go on")
        if length is not None and size > start + int(length):
            _empty(part)
            raise OSError(f"{size} bytes came, not {start + int(length)}; run again")
    except (OSError, HTTPException, ValueError) as error:
        raise OSError(f"root: {path} is missing and {url} could not be downloaded ({error}).") from error


def _answer(url: str, part: Path) -> tuple[int, HTTPResponse]:
    """The server's answer from where the part ends, or from the start, for which the part is emptied."""
    start = part.stat().st_size
    headers = {"Range": f"bytes={start}-"} if start else {}
    try:
        response: Any = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != RANGE_NOT_SATISFIABLE or not start:
            raise
        _empty(part)
        return _answer(url, part)
    if start and response.status == PARTIAL_CONTENT:
        told = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
        if told is None or int(told[1]) == start:
            return start, response
        response.close()  # it goes on elsewhere
        _empty(part)
        return _answer(url, part)
    _empty(part)
    return 0, response


def _empty(part: Path) -> None:
    part.write_bytes(b"")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()
