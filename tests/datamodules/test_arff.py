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


def read(tmp_path, content: str | bytes):
    path = tmp_path / "small.arff"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_arff(path)


@pytest.mark.parametrize("row", ["1", "1,2", "1.5,-2,", ",,", "1,2,3,4", "1,2,0,"])
def test_a_cut_row_is_an_error_that_names_its_line(tmp_path, row):
    with pytest.raises(ValueError, match=r"small.arff, line 9: expected a row of 3 numbers, got"):
        read(tmp_path, f"{HEADER}1,1,1\n{row}\n")


@pytest.mark.parametrize(
    "value", ["nan", "NaN", "inf", "-Infinity", "1e39", "1e999", "?", "1_0", "١", "0x1", "1 2", ""]
)
@pytest.mark.parametrize("row", ["{},2,1", "{{0 {},2 1}}"])
def test_what_is_no_number_of_float32_is_an_error_that_names_its_line(tmp_path, value, row):
    with pytest.raises(ValueError, match=r"small.arff, line 9: expected a row of 3 numbers, got"):
        read(tmp_path, f"{HEADER}1,1,1\n{row.format(value)}\n")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{1 2,1 3}", "a column is there twice"),
        ("{1 2,01 3}", "a column is there twice"),
        ("{3 1}", "column 3 is not one of 0 to 2"),
        ("{-1 1}", "column -1 is not one of 0 to 2"),
        ("{1_0 1}", "column 1_0 is not one of"),
        ("{99999999999999999999 1}", "is not one of"),
        ("{0 1,}", "an entry is not a column and a value"),
        ("{,}", "an entry is not a column and a value"),
        ("{0 1},{2}", "an entry is not"),
        ("{0 1", "it does not end"),
        ("{", "it does not end"),
    ],
)
def test_a_sparse_row_that_does_not_fit_says_why(tmp_path, row, said):
    with pytest.raises(ValueError, match=rf"small.arff, line 9: expected a row of 3 numbers, got .*\(.*{said}.*\)"):
        read(tmp_path, f"{HEADER}1,1,1\n{row}\n")


def test_quotes_spaces_and_other_ways_to_write_the_same(tmp_path):
    rows = "'1.5', \"-2\",1\n { 0 1.5 , 1\t'-2' ,2 1 } \n1.5 ,-2. ,+1e0\n{ }\n"
    header = "\ufeff@Relation 'a b'\n@Attribute\ta Numeric\n@attribute 'it\\'s' real [0,1]\n"
    header += "@ATTRIBUTE \"d\" { '0' , 1 }\n@DATA\n"
    for end in ("\n", "\r\n", "\r"):
        names, values = read(tmp_path, (header + rows).replace("\n", end))
        assert names == ["a", "it's", "d"]
        np.testing.assert_array_equal(values, [[1.5, -2, 1]] * 3 + [[0, 0, 0]])


def test_what_a_sparse_row_leaves_out_is_the_first_value_in_braces(tmp_path):
    _, values = read(tmp_path, "@attribute a {1,0}\n@attribute b {2,3}\n@attribute c real\n@data\n{}\n{0 0}\n")
    np.testing.assert_array_equal(values, [[1, 2, 0], [0, 2, 0]])


def test_a_value_that_is_not_in_the_braces_is_an_error_that_names_its_line(tmp_path):
    for row in ("1,1,2", "{2 2}", "1,1,0.5"):
        with pytest.raises(ValueError, match=r"small.arff: expected labels 0 and 1, got others: 'd' is .* in line 9"):
            read(tmp_path, f"{HEADER}1,1,1\n{row}\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("@attribute", "a name and a kind are missing"),
        ("@attribute e", "a name and a kind are missing"),
        ("@attribute 'e numeric", "a name and a kind are missing"),
        ("@attribute e string", "it is not one of numbers"),
        ("@attribute e {yes,no}", "'yes' is no decimal number"),
        ("@attribute e {}", "'' is no decimal number"),
        ("@attribute e {0,1", "it is not one of numbers"),
        ("@attribute a numeric", "the name is there twice"),
    ],
)
def test_an_attribute_that_is_none_is_an_error_that_names_its_line(tmp_path, line, said):
    header = HEADER.replace("@attribute d", f"{line}\n@attribute d")
    with pytest.raises(ValueError, match=rf"small.arff, line 5: expected @attribute, a name .*, got .*\(.*{said}\)"):
        read(tmp_path, f"{header}1,1,1\n")


@pytest.mark.parametrize("data", ["", "@dat\n", "@database\n", "@data 1\n"])
def test_rows_without_the_line_data_are_an_error(tmp_path, data):
    with pytest.raises(ValueError, match=r"small.arff: expected attributes and rows after @data, got '.*' in line 7"):
        read(tmp_path, HEADER.replace("@data\n", data) + "1,1,1\n")


def test_another_encoding_is_an_error_that_names_its_line(tmp_path):
    with pytest.raises(ValueError, match=r"small.arff: expected a text in UTF-8, got the byte 0xe9 in line 4"):
        read(tmp_path, (HEADER.replace("b c", "é") + "1,1,1\n").encode("latin1"))
