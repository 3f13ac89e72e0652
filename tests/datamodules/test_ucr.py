import csv
import gzip
import shutil
import zipfile

import numpy as np
import pytest
import torch

from datamodules import UCRArchive
from datamodules.ucr import extract, stratified_fifth, usual_input_size
from tests.small_data import write_ucr


def set_up(name, root, **kwargs) -> UCRArchive:
    data = UCRArchive(name, root, download=False, **kwargs)
    data.prepare_data()
    data.setup()
    return data


def test_shapes_and_labels(tmp_path):
    data = set_up("CBF", write_ucr(tmp_path, labels=(-1, 1, 5)), batch_size=8)
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (24, 6, 18)
    assert (data.input_size, data.num_classes) == (3, 3)
    inputs, targets = next(iter(data.test_dataloader()))
    assert inputs.shape == (8, 4, 3)
    assert inputs.dtype == torch.float32
    assert targets.tolist() == [0] * 6 + [1] * 2
    line = gzip.decompress((tmp_path / "CBF" / "CBF_TEST.tsv.gz").read_bytes()).decode().splitlines()[0]
    np.testing.assert_allclose(inputs[0].flatten(), np.array(line.split("\t")[1:], np.float32))


def test_input_size_is_a_choice(tmp_path):
    write_ucr(tmp_path)
    assert set_up("CBF", tmp_path, input_size=12).test_set.inputs.shape == (12, 1, 12)
    with pytest.raises(ValueError, match="input_size: expected a divisor of 12, .* got 5"):
        set_up("CBF", tmp_path, input_size=5)


def test_split_is_stratified_and_drawn_by_seed(tmp_path):
    write_ucr(tmp_path)
    first, again, other = (set_up("CBF", tmp_path, seed=seed) for seed in (1, 1, 2))
    assert first.val_set.targets.sort().values.tolist() == [0, 0, 1, 1]
    assert torch.equal(first.val_set.inputs, again.val_set.inputs)
    assert not torch.equal(first.val_set.inputs, other.val_set.inputs)
    with pytest.raises(ValueError, match="at least 3 training series"):
        stratified_fifth(np.array([1, 1, 2, 2]), seed=0)


def test_baseline_is_the_constant_answer(tmp_path):
    data = set_up("CBF", write_ucr(tmp_path, labels=(1, 3, 7)))
    assert data.baseline_accuracy == pytest.approx(1 / 3)


def test_names_of_both_years(tmp_path):
    write_ucr(tmp_path, "GunPoint")
    assert len(set_up("Gun_Point", tmp_path).test_set) == len(set_up("GunPoint", tmp_path).test_set) == 12


def test_unknown_names_are_answered_with_near_ones():
    with pytest.raises(ValueError, match=r"name: expected a set of the UCR archive, got 'ECG2000'; near .*ECG200"):
        UCRArchive("ECG2000")
    with pytest.raises(ValueError, match="near it are none"):
        UCRArchive("~~~~")


@pytest.mark.parametrize("name", ["CBF", "DistalPhalanxTW"])
def test_extracts_from_the_official_archive(tmp_path, name):
    source = write_ucr(tmp_path / "source", name)
    root = tmp_path / "root"
    root.mkdir()
    with zipfile.ZipFile(root / "UCRArchive_2018.zip", "w") as archive:
        for part in ("TRAIN", "TEST"):
            text = gzip.decompress((source / name / f"{name}_{part}.tsv.gz").read_bytes())
            archive.writestr(f"UCRArchive_2018/{name}/{name}_{part}.tsv", text)
    train, test = (20, 12) if name == "CBF" else (12, 20)  # the archive of 2018 has the second the other way round
    data = set_up(name, root)
    assert (len(data.train_set) + len(data.val_set), len(data.test_set)) == (train, test)
    (root / "UCRArchive_2018.zip").unlink()
    set_up(name, root)  # extracted once
    inside = set_up(name, root / "UCRArchive_2018")
    assert torch.equal(inside.test_set.inputs, data.test_set.inputs)
    (root / name).mkdir()
    shutil.copy(root / f"UCRArchive_2018/{name}/{name}_TRAIN.tsv", root / name)  # alone, and of another split
    assert torch.equal(set_up(name, root).train_set.inputs, data.train_set.inputs)


def test_damaged_archives(tmp_path):
    archive = tmp_path / "UCRArchive_2018.zip"
    archive.write_bytes(b"PK half a file")
    with pytest.raises(ValueError, match=r"UCRArchive_2018.zip: expected the UCR archive .* remove it"):
        set_up("CBF", tmp_path)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("another/file", "text")
    with pytest.raises(ValueError, match=r"expected the UCR archive with UCRArchive_2018/CBF/CBF_TRAIN.tsv"):
        set_up("CBF", tmp_path)
    assert list(tmp_path.iterdir()) == [archive]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1\t2\t3", "expected rows of equally many numbers"),
        ("x" + "\t1" * 12, "expected rows of equally many numbers"),
        ("1" + "\tNaN" * 12, "expected series of one length, got some with values missing"),
    ],
)
def test_rows_that_do_not_fit(tmp_path, row, message):
    path = write_ucr(tmp_path) / "CBF" / "CBF_TEST.tsv.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + row.encode()))
    with pytest.raises(ValueError, match=rf"CBF_TEST.tsv.gz: {message}"):
        set_up("CBF", tmp_path)


def test_other_files_that_do_not_fit(tmp_path):
    write_ucr(tmp_path)
    path = tmp_path / "CBF" / "CBF_TEST.tsv.gz"
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(b"1\t2\t3\n"))
    with pytest.raises(ValueError, match="CBF: expected test series of length 12, got 2"):
        set_up("CBF", tmp_path)
    path.write_bytes(gzip.compress(b""))
    with pytest.raises(ValueError, match="expected rows of a label and values"):
        set_up("CBF", tmp_path)
    path.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match="expected a gzip file, got a damaged one"):
        set_up("CBF", tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"expected CBF/CBF_TEST.tsv in .*UCRArchive_2018/CBF/CBF_TEST.tsv"):
        set_up("CBF", tmp_path)


def test_the_real_files(shared_data):
    with (shared_data / "ucr" / "table4.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        data = set_up(row["dataset"], shared_data / "ucr")
        assert len(data.train_set) + len(data.val_set) == int(row["got_train"]), row["dataset"]
        assert len(data.test_set) == int(row["got_test"]), row["dataset"]
        assert data.num_classes == int(row["got_classes"]), row["dataset"]
        length = int(row["got_length"])
        assert data.test_set.inputs[0].numel() == length, row["dataset"]
        assert usual_input_size(length) == int(row["n_i_rule"]), row["dataset"]


def linear_classifier(series, signs):
    """Ridge regression of ±1 on the values, with a constant."""
    inputs = torch.cat((series, torch.ones(len(series), 1)), 1).double()
    weights = torch.linalg.solve(inputs.mT @ inputs + torch.eye(inputs.shape[1]), inputs.mT @ signs)
    return lambda others: (others.double() @ weights[:-1] + weights[-1]).sign()


def accuracy_on_itself(series, signs, folds=5):
    fold = torch.arange(len(signs)) % folds
    found = torch.zeros_like(signs)
    for i in range(folds):
        found[fold == i] = linear_classifier(series[fold != i], signs[fold != i])(series[fold == i])
    return (found == signs).double().mean().item()


@pytest.mark.parametrize(
    ("name", "within", "across"),
    [
        ("MiddlePhalanxOutlineCorrect", (0.76, 0.78), (0.53, 0.62)),
        ("DistalPhalanxOutlineCorrect", (0.67, 0.73), (0.63, 0.65)),
    ],
)
def test_what_separates_the_training_series_need_not_separate_the_test_series(shared_data, name, within, across):
    data = set_up(name, shared_data / "ucr")
    parts = [[data.train_set, data.val_set], [data.test_set]]
    series = [torch.cat([part.inputs.flatten(1) for part in each]) for each in parts]
    signs = [torch.cat([part.targets for part in each]).double() * 2 - 1 for each in parts]
    assert tuple(map(accuracy_on_itself, series, signs)) == pytest.approx(within, abs=0.02)
    by_other = [
        (linear_classifier(series[i], signs[i])(series[1 - i]) == signs[1 - i]).double().mean().item() for i in (0, 1)
    ]
    assert by_other == pytest.approx(across, abs=0.01)


def rewrite(path, change):
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


def test_a_byte_order_mark_and_other_ends_of_lines_are_read(tmp_path):
    before = set_up("CBF", write_ucr(tmp_path))
    path = tmp_path / "CBF" / "CBF_TEST.tsv.gz"
    rewrite(path, lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n") + b"\r\n")
    after = set_up("CBF", tmp_path)
    assert torch.equal(before.test_set.inputs, after.test_set.inputs)
    assert torch.equal(before.test_set.targets, after.test_set.targets)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"1" + b"\t1" * 11, "rows of equally many numbers, got 12 in line 13, not 13"),
        (b"1" + b"\t1" * 13, "rows of equally many numbers, got 14 in line 13, not 13"),
        (b"one" + b"\t1" * 12, "rows of equally many numbers, got in line 13: 'one' is no decimal number"),
        (b"1" + b"\t1" * 11 + b"\t", "rows of equally many numbers, got in line 13: '' is no decimal number"),
        (b"1" + b"\tinf" * 12, "rows of equally many numbers, got in line 13: 'inf' is no decimal number"),
        (b"1" + b"\t1_0" * 12, "rows of equally many numbers, got in line 13: '1_0' is no decimal number"),
        (b"1" + b"\t1e39" * 12, "rows of equally many numbers, got in line 13: 1e39 is more than float32 holds"),
        (b"1.5" + b"\t1" * 12, "rows of a label and values, .* the label a whole number, got .* in line 13"),
        (b"1" + b"\t1" * 11 + b"\tNaN", "series of one length, got some with values missing, in line 13"),
        ("1\té".encode("latin1"), "a text in UTF-8, got the byte 0xe9 in line 13"),
        (b"1" + b",1" * 12, "rows of equally many numbers, got in line 13"),
    ],
)
def test_a_row_that_does_not_fit_is_an_error_that_names_its_line(tmp_path, row, said):
    path = write_ucr(tmp_path) / "CBF" / "CBF_TEST.tsv.gz"
    rewrite(path, lambda text: text + row + b"\n")
    with pytest.raises(ValueError, match=rf"CBF_TEST.tsv.gz: expected {said}"):
        set_up("CBF", tmp_path)


def test_a_zip_that_is_damaged_inside_is_named_and_leaves_nothing(tmp_path):
    archive = tmp_path / "UCRArchive_2018.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for part in ("TRAIN", "TEST"):
            file.writestr(f"UCRArchive_2018/CBF/CBF_{part}.tsv", "1\t2\t3\n" * 1000)
    whole = archive.read_bytes()
    for at in range(0, len(whole), 3):
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        said = None
        try:
            extract(archive, "UCRArchive_2018/CBF/CBF_TRAIN.tsv")
        except ValueError as error:
            said = str(error)
        if said is None:
            found = tmp_path / "UCRArchive_2018"
            assert (found / "CBF" / "CBF_TRAIN.tsv").read_text() == "1\t2\t3\n" * 1000
            shutil.rmtree(found)
        else:
            assert said.startswith(f"{archive}: expected the UCR archive with")
            assert list(tmp_path.iterdir()) == [archive]
