import gzip
from pathlib import Path

import pytest

from datamodules.files import read_lines, text_of

NAME = Path("text.txt")


def test_a_byte_order_mark_is_no_part_of_a_text():
    assert text_of(b"\xef\xbb\xbfno\xef\xbb\xbf", NAME) == "no\ufeff"
    assert text_of(b"", NAME) == ""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a\nb\né".encode("latin1"), "the byte 0xe9 in line 3, at position 4"),
        ("é".encode("latin1"), "the byte 0xe9 in line 1, at position 0"),
        ("ab\n".encode("utf-16"), "the byte 0xff in line 1"),
        ("ab\n".encode("utf-16-le"), "the byte 0x00 in line 1, at position 1"),
        ("é".encode()[:1], "the byte 0xc3 in line 1"),
    ],
)
def test_another_encoding_is_an_error_that_names_its_line(content, said):
    with pytest.raises(ValueError, match=f"text.txt: expected a text in UTF-8, got {said}.*; save it as UTF-8"):
        text_of(content, NAME)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_every_system_are_the_same(end, tmp_path):
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(end.join(["a", "b\x0b\x1c\u2028c", "", "d"]).encode()))
    assert read_lines(path) == ["a", "b\x0b\x1c\u2028c", "", "d"]
