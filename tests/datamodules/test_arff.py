import gzip

import numpy as np
import pytest

from datamodules.arff import read_arff

HEADER = "@RELATION r\n% a comment\n@attribute a numeric\n@ATTRIBUTE 'b c' real\n@attribute d {0,1}\n\n@data\n"


def test_dense_and_sparse_rows(tmp_path):
    path = tmp_path / "small.arff.gz"
    path.write_bytes(gzip.compress((HEADER + "1.5,-2,1\n% nothing\n{0 3, 2 1}\n\n{}\n").encode()))
    names, values = read_arff(path)
    assert names == ["a", "b c", "d"]
    np.testing.assert_array_equal(values, [[1.5, -2, 1], [3, 0, 1], [0, 0, 0]])
    assert values.dtype == np.float32


@pytest.mark.parametrize("row", ["1,2", "1,2,3,4", "1,x,0", "{3 1}", "{-1 1}", "{0 1", "{0}", "{0 1 2}", "{a 1}"])
def test_rows_that_do_not_fit(tmp_path, row):
    path = tmp_path / "small.arff"
    path.write_text(f"{HEADER}1,1,1\n{row}\n")
    with pytest.raises(ValueError, match=r"small.arff, line 9: expected a row of 3 numbers, got"):
        read_arff(path)


@pytest.mark.parametrize("content", ["", "@data\n1,2\n", HEADER, "<html>\n"])
def test_not_an_arff_file(tmp_path, content):
    path = tmp_path / "small.arff"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"small.arff: expected attributes and rows"):
        read_arff(path)


def test_cut_short(tmp_path):
    path = tmp_path / "small.arff.gz"
    path.write_bytes(gzip.compress((HEADER + "1,1,1\n" * 50).encode())[:-12])
    with pytest.raises(ValueError, match="expected a gzip file, got a damaged one"):
        read_arff(path)
