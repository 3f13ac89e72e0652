import json
import struct

import pytest
import torch

from spectral_param.report.checkpoints.inspection import inspect_file
from spectral_param.report.checkpoints.stored import stored_tensors
from tests.spectral_param.report.checkpoints.files import write_safetensors


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_tensors_come_back_as_they_were_written(tmp_path, dtype):
    tensors = {"a": torch.randn(3, 4).to(dtype), "scalar": torch.ones((), dtype=dtype), "none": torch.ones(0, 2)}
    found = stored_tensors(write_safetensors(tmp_path / "a.safetensors", tensors))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].shape, found[name].dtype) == (tuple(tensor.shape), tensor.dtype)
        assert torch.equal(found[name].load(), tensor)


def test_the_shards_of_an_index_are_one_checkpoint(tmp_path):
    for part in ("a", "b"):
        write_safetensors(tmp_path / f"{part}.safetensors", {part: torch.ones(2, 2)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "../b.safetensors"}}))
    assert list(stored_tensors(index)) == ["a", "b"]
    index.write_text("[1]")
    with pytest.raises(ValueError, match="expected an index with a weight_map"):
        stored_tensors(index)


def test_what_an_index_names_and_its_shards_do_not_have_is_named(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.ones(2, 2)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "a.safetensors"}}))
    found = stored_tensors(index)
    assert {name: stored.unread for name, stored in found.items()} == {"a": "", "b": "not in a.safetensors"}
    with pytest.raises(ValueError, match=r"expected b in a\.safetensors"):
        found["b"].load()
    assert inspect_file(index)[1] == {"b": "not in a.safetensors"}


def test_a_shard_that_is_not_there_is_named_and_the_others_are_read(tmp_path):
    write_safetensors(tmp_path / "a.safetensors", {"a": torch.ones(2, 2)})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    rows, passed_over = inspect_file(index)
    assert [row["weight"] for row in rows] == ["a"]
    assert passed_over == {"b": "there is no b.safetensors"}
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected a\.safetensors with what it names, found nothing of it"):
        inspect_file(index)


@pytest.mark.parametrize("part", ["model.safetensors.index.json", "other.index.json", "", "a\x1b[2J.safetensors"])
def test_a_shard_that_is_an_index_or_has_no_proper_name_is_an_error_that_names_it(tmp_path, part):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": part}}))
    with pytest.raises(ValueError, match="expected names of files with tensors in its weight_map, got") as caught:
        stored_tensors(index)
    assert repr(part) in str(caught.value)
    assert str(caught.value).isprintable()


def header(**entries):
    return json.dumps(entries).encode()


A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("text", "data", "message"),
    [
        (header(a=A), 7, r"expected 77 bytes for a, got 76; it is cut"),
        (b"not json", 8, "expected the header of a safetensors file"),
        (b"[1, 2]", 8, "expected the header of a safetensors file"),
        (b'{"a": 1, "a": 2}', 8, "a name stands there twice"),
        (b"[" * 100_000, 8, "expected the header of a safetensors file"),
        (header(a={"dtype": "F32"}), 8, "expected the header"),
        (header(a=A | {"shape": [-2]}), 8, "a has a shape or place that is none"),
        (header(a=A | {"shape": [2**40, 2**40]}), 8, "expected as many bytes as a"),
        (header(a=A | {"shape": [3]}), 8, "expected as many bytes as a"),
        (header(a=A, b=A), 8, "b lies upon another"),
        (header(a=A | {"data_offsets": [8, 0]}), 8, "a lies upon another"),
        (b"\xff\xfe", 8, "expected the header"),
    ],
)
def test_a_hostile_or_cut_file_is_an_error_that_names_it(tmp_path, text, data, message):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data))
    with pytest.raises(ValueError, match=message) as caught:
        stored_tensors(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("content", [b"", b"\x01", struct.pack("<Q", 2**62), struct.pack("<Q", 9) + b"{}"])
def test_a_length_beyond_the_file_is_never_read(tmp_path, content):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="it is cut"):
        stored_tensors(path)
