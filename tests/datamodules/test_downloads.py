import gzip
import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from datamodules import downloads
from datamodules.downloads import fetch
from datamodules.files import DataFile, find_file, read_file

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves the content; other ways to do so, and to fail, by name."""

    asked: ClassVar[list[str | None]] = []

    def do_GET(self):
        asked = self.headers.get("Range")
        self.asked.append(asked)
        way = self.path[1:]
        start = int(asked[6:-1]) if asked and way != "whole" else 0
        if way == "missing":
            self.send_error(404)
            return
        if start >= len(CONTENT) or way == "never":
            self.send_error(416)
            return
        if way == "elsewhere" and asked:
            start //= 2
        self.send_response(206 if start else 200)
        if way == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", "long" if way == "wordy" else str(len(CONTENT) - start))
        if way in ("ranges", "elsewhere"):
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()
        if way == "chunked":
            self.wfile.write(b"ff\r\n" + CONTENT[:100])
        elif way == "slow":
            for at in range(start, len(CONTENT), 1024):
                self.wfile.write(CONTENT[at : at + 1024])
                time.sleep(0.02)
        else:
            self.wfile.write(CONTENT[start : len(CONTENT) // 2] if way == "broken" else CONTENT[start:])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    Server.asked.clear()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Server)
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


@pytest.mark.parametrize(
    ("way", "said"), [("chunked", "IncompleteRead"), ("wordy", "broke off|invalid literal"), ("never", "416")]
)
def test_an_answer_that_makes_no_sense_is_told_and_leaves_no_file(way, said, server, tmp_path):
    with pytest.raises(OSError, match=rf"root: .*/file is missing and .*/{way} could not be downloaded .*({said})"):
        fetch(f"{server}/{way}", tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(("way", "asked"), [("ranges", 1), ("elsewhere", 2)])
def test_goes_on_only_where_the_part_ends(way, asked, server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    fetch(f"{server}/{way}", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert Server.asked == ["bytes=1000-", None][:asked]


def test_more_than_the_server_tells_is_not_kept(server, tmp_path, monkeypatch):
    part, path = tmp_path / "file.part", tmp_path / "file"
    read = downloads.HTTPResponse.read

    def with_another(response, *args):
        block = read(response, *args)
        if block:  # as if another process wrote to the part, too
            with part.open("ab") as file:
                file.write(CONTENT[:100])
        return block

    with monkeypatch.context() as patch:
        patch.setattr(downloads.HTTPResponse, "read", with_another)
        with pytest.raises(OSError, match=f"{len(CONTENT) + 100} bytes came, not {len(CONTENT)}"):
            fetch(f"{server}/file", path)
    assert not list(tmp_path.iterdir())
    fetch(f"{server}/file", path)
    assert path.read_bytes() == CONTENT


def test_threads_that_want_one_file_download_it_once(server, tmp_path):
    path = tmp_path / "file"
    threads = [threading.Thread(target=fetch, args=(f"{server}/slow", path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == CONTENT
    assert Server.asked == [None]
    assert list(tmp_path.iterdir()) == [path]


def _fetch(rank, url, path):
    fetch(url, path)
    return path.read_bytes()


def test_processes_that_want_one_file_download_it_once(server, tmp_path, two_processes):
    path = tmp_path / "file"
    assert two_processes(_fetch, f"{server}/slow", path) == [CONTENT, CONTENT]
    assert Server.asked == [None]
    assert list(tmp_path.iterdir()) == [path]


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
