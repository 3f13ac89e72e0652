import gzip
import struct

import pytest
import torch

from datamodules.idx import read_idx

CONTENT = struct.pack(">4B3I", 0, 0, 8, 3, 2, 1, 3) + bytes([0, 1, 2, 253, 254, 255])


def test_plain_and_compressed(tmp_path):
    (tmp_path / "images").write_bytes(CONTENT)
    (tmp_path / "images.gz").write_bytes(gzip.compress(CONTENT))
    expected = torch.tensor([[[0, 1, 2]], [[253, 254, 255]]], dtype=torch.uint8)
    assert torch.equal(read_idx(tmp_path / "images"), expected)
    assert torch.equal(read_idx(tmp_path / "images.gz"), expected)


@pytest.mark.parametrize("keep", [0, 3, 4, 10, 16, len(CONTENT) - 1])
def test_cut_short(tmp_path, keep):
    path = tmp_path / "images"
    path.write_bytes(CONTENT[:keep])
    with pytest.raises(ValueError, match="images"):
        read_idx(path)


@pytest.mark.parametrize("damage", [lambda c: c[:-9], lambda c: c[:14] + b"\xff" + c[15:], bytes.upper])
def test_damaged_gzip(tmp_path, damage):
    path = tmp_path / "images.gz"
    path.write_bytes(damage(gzip.compress(CONTENT)))
    with pytest.raises(ValueError, match=r"images\.gz: expected a gzip file, got a damaged one .*remove it"):
        read_idx(path)


def test_not_unsigned_bytes(tmp_path):
    path = tmp_path / "floats"
    path.write_bytes(struct.pack(">4BI", 0, 0, 0x0D, 1, 1) + bytes(4))
    with pytest.raises(ValueError, match="expected an idx file of unsigned bytes, got one that begins 00000d01"):
        read_idx(path)


def test_too_long(tmp_path):
    path = tmp_path / "images"
    path.write_bytes(CONTENT + b"\0")
    with pytest.raises(ValueError, match=r"expected 6 bytes of shape \(2, 1, 3\), got 7"):
        read_idx(path)


@pytest.mark.parametrize("shape", [(), (0, 28, 28), (2, 0)])
def test_a_file_of_nothing_is_an_error_that_names_it(tmp_path, shape):
    path = tmp_path / "images"
    path.write_bytes(struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(not shape))
    with pytest.raises(ValueError, match=r"images: expected entries in each dimension, got .* bytes of shape"):
        read_idx(path)
