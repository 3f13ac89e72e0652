"""Files that are cut or changed a little, of every format: a good parse, or an error that names them."""

import gzip
import io
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datamodules.arff import read_arff
from datamodules.files import read_file
from datamodules.idx import read_idx
from datamodules.mnist import read_digits
from datamodules.multilabel import label_names, read_samples
from datamodules.series import read_series
from datamodules.ucr import extract
from datamodules.words import numbered, words_of

MEMBER = "UCRArchive_2018/CBF/CBF_TRAIN.tsv"
SERIES = b"1\t0.5\t-0.25\n2\t1e-1\t0\n1\t.5\t3\n"
LABELS = "<labels xmlns='http://mulan.sourceforge.net/labels'><label name='c'/><label name='d'/></labels>"
DENSE = b"@relation r\n@attribute a numeric\n@attribute 'b' real\n@attribute c {0,1}\n@attribute d {0,1}\n@data\n"


def idx(*shape: int) -> bytes:
    entries = np.arange(np.prod(shape)) % 10
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + entries.astype(np.uint8).tobytes()


def archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(zipfile.ZipInfo(MEMBER), SERIES * 20)
    return content.getvalue()


def read_arff_and_check(path: Path) -> None:
    names, values = read_arff(path)
    assert values.shape[1] == len(names) > 0 < len(values)
    assert np.isfinite(values).all()


def read_samples_and_check(path: Path) -> None:
    names, inputs, targets = read_samples(path, ["c", "d"])
    assert inputs.shape == (len(targets), len(names))
    assert inputs.isfinite().all()
    assert ((targets == 0) | (targets == 1)).all()


def read_series_and_check(path: Path) -> None:
    rows = read_series(path)
    assert rows.ndim == 2
    assert rows.shape[1] > 1
    assert np.isfinite(rows.astype(np.float32)).all()


def read_images_and_check(path: Path) -> None:
    labels = path.with_name("labels")
    labels.write_bytes(idx(2))
    images, digits = read_digits(path, labels)
    assert (images.shape, digits.shape) == ((2, 784), (2,))


def read_labels_and_check(path: Path) -> None:
    images = path.with_name("images")
    images.write_bytes(idx(40, 28, 28))
    _, digits = read_digits(images, path)
    assert digits.shape == (40,)
    assert digits.max() < 10


def read_words_and_check(path: Path) -> None:
    words = words_of(read_file(path), path)
    numbers = numbered(sorted(set(words)), words, path)
    assert numbers.dtype == torch.int64
    assert len(numbers) == len(words) > 0
    numbered(["<eos>", "no", "yes", "é"], words, path)


def extract_and_check(path: Path) -> None:
    extract(path, MEMBER)
    assert (path.parent / MEMBER).read_bytes() == SERIES * 20


FORMATS: dict[str, tuple[bytes, Callable[[Path], object]]] = {
    "idx": (idx(2, 1, 3), read_idx),
    "idx.gz": (gzip.compress(idx(2, 1, 3)), read_idx),
    "images": (idx(2, 28, 28), read_images_and_check),
    "digits": (idx(40), read_labels_and_check),
    "arff": (DENSE + b".5,-2,1,0\n'1',3e-1,0,1\n", read_arff_and_check),
    "sparse.arff": (DENSE + b"{0 3,2 1}\n{}\n% none\n{ 1 '2.5' ,3 1 }\n", read_arff_and_check),
    "arff.gz": (gzip.compress(DENSE + b".5,-2,1,0\n"), read_arff_and_check),
    "mulan.arff": (DENSE + b".5,-2,1,0\n{0 1}\n", read_samples_and_check),
    "xml": (LABELS.encode(), label_names),
    "declared.xml": (f'<?xml version="1.0" encoding="utf-8"?>{LABELS}'.encode(), label_names),
    "tsv": (SERIES, read_series_and_check),
    "mark.tsv": (b"\xef\xbb\xbf" + SERIES, read_series_and_check),
    "tsv.gz": (gzip.compress(SERIES), read_series_and_check),
    "txt": ("no yes\né no\n".encode(), read_words_and_check),
    "txt.gz": (gzip.compress("no yes\né no\n".encode()), read_words_and_check),
    "zip": (archive(), extract_and_check),
}


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file to which something has happened, once or a few times."""
    content = whole
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        to = draw(st.integers(at, min(at + 8, len(content))))
        other = draw(st.integers(0, max(len(content) - 1, 0)))
        what = draw(st.sampled_from(["cut", "lost", "flipped", "swapped", "changed", "doubled"]))
        if what == "cut":
            content = content[:at]
        elif what == "lost":
            content = content[:at] + content[to:]
        elif what == "flipped":
            bit = 1 << draw(st.integers(0, 7))
            content = content[:at] + bytes(byte ^ bit for byte in content[at : at + 1]) + content[at + 1 :]
        elif what == "swapped":
            changed = bytearray(content)
            if at < len(content):
                changed[at], changed[other] = changed[other], changed[at]
            content = bytes(changed)
        elif what == "changed":
            content = content[:at] + draw(st.binary(max_size=4)) + content[to:]
        else:
            content = content[:to] + content[at:]
    return content


@contextmanager
def folder() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp())
    try:
        yield place
    finally:
        shutil.rmtree(place)


@pytest.mark.parametrize("name", FORMATS)
def test_a_whole_file_is_read(name):
    content, read = FORMATS[name]
    with folder() as place:
        (place / name).write_bytes(content)
        read(place / name)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150, deadline=5000, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(data=st.data())
def test_a_damaged_file_is_read_or_named(name, data):
    whole, read = FORMATS[name]
    content = data.draw(damaged(whole))
    with folder() as place:
        path = place / name
        path.write_bytes(content)
        said = None
        try:
            read(path)
        except ValueError as error:  # and of no other kind
            said = str(error)
        assert said is None or str(path) in said
        assert path.read_bytes() == content


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_cut_anywhere_is_read_or_named(name):
    whole, read = FORMATS[name]
    with folder() as place:
        for end in range(0, len(whole), 1 + len(whole) // 200):
            path = place / name
            path.write_bytes(whole[:end])
            said = None
            try:
                read(path)
            except ValueError as error:
                said = str(error)
            assert said is None or str(path) in said
