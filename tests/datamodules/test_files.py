import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from datamodules.files import DataFile, fetch, find_file, read_file

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves the content; ``/broken`` breaks off half way, ``/whole`` ignores ranges."""

    asked: ClassVar[list[str | None]] = []

    def do_GET(self):
        asked = self.headers.get("Range")
        self.asked.append(asked)
        start = int(asked[6:-1]) if asked and self.path != "/whole" else 0
        if self.path == "/missing":
            self.send_error(404)
            return
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        self.wfile.write(CONTENT[start : len(CONTENT) // 2] if self.path == "/broken" else CONTENT[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Server.asked.clear()
    httpd = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()
    thread.join()


def test_fetches_a_file(server, tmp_path):
    fetch(f"{server}/file", tmp_path / "new" / "file", SHA256)
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "file"]


def test_goes_on_after_a_broken_download(server, tmp_path):
    path = tmp_path / "file"
    with pytest.raises(OSError, match=r"root: .*file is missing and .*/broken could not be downloaded .*broke off"):
        fetch(f"{server}/broken", path, SHA256)
    assert not path.exists()
    fetch(f"{server}/file", path, SHA256)
    assert path.read_bytes() == CONTENT
    assert Server.asked == [None, f"bytes={len(CONTENT) // 2}-"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("part", [b"something else", CONTENT[:100] + b"!", CONTENT, CONTENT + b"!"])
@pytest.mark.parametrize("way", ["file", "whole"])
def test_starts_again_after_a_part_that_does_not_fit(server, tmp_path, part, way):
    path = tmp_path / "file"
    (tmp_path / "file.part").write_bytes(part)
    fetch(f"{server}/{way}", path, SHA256)
    assert path.read_bytes() == CONTENT


def test_wrong_checksum(server, tmp_path):
    with pytest.raises(ValueError, match=f"expected a file with the sha256 {'0' * 64}, got {SHA256}"):
        fetch(f"{server}/file", tmp_path / "file", "0" * 64)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_fetched(server, tmp_path):
    with pytest.raises(OSError, match=r"root: .*/file is missing and .*/missing could not be downloaded .*404"):
        fetch(f"{server}/missing", tmp_path / "file", SHA256)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match=r"root: /proc/nothing/file is missing and cannot be written"):
        fetch(f"{server}/file", Path("/proc/nothing/file"), SHA256)


def test_a_file_of_a_set(server, tmp_path):
    file = DataFile("here/file", f"{server}/file", SHA256, aliases=("there/old",))
    with pytest.raises(FileNotFoundError, match=r"expected here/file in .*neither it nor here/file.gz, there/old, "):
        file.prepare(tmp_path, download=False)
    file.prepare(tmp_path, download=True)
    assert file.find(tmp_path) == tmp_path / "here" / "file"
    (tmp_path / "here" / "file").unlink()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "old.gz").write_bytes(gzip.compress(CONTENT))
    file.prepare(tmp_path, download=True)
    assert len(Server.asked) == 1
    assert read_file(find_file(tmp_path, "here/file", "there/old")) == CONTENT
