import pytest
import torch

from datamodules import MultiLabel
from tests.small_data import write_multilabel


def set_up(root, name="bibtex", **kwargs) -> MultiLabel:
    data = MultiLabel(name, root, download=False, **kwargs)
    data.prepare_data()
    data.setup()
    return data


@pytest.mark.parametrize("sparse", [True, False])
def test_shapes_and_values(tmp_path, sparse):
    data = set_up(write_multilabel(tmp_path, sparse=sparse), batch_size=4)
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (16, 4, 10)
    inputs, targets = next(iter(data.train_dataloader()))
    assert inputs.shape == (4, 6)
    assert targets.shape == (4, 3)
    assert inputs.dtype == targets.dtype == torch.float32
    assert set(targets.unique().tolist()) == {0.0, 1.0}


def test_sparse_and_dense_are_the_same(tmp_path):
    data = [set_up(write_multilabel(tmp_path / str(sparse), sparse=sparse)) for sparse in (True, False)]
    for part in ("train_set", "val_set", "test_set"):
        first, second = (getattr(d, part) for d in data)
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.targets, second.targets)


def test_split_is_drawn_by_seed(tmp_path):
    write_multilabel(tmp_path, features=12)
    first, again, other = (set_up(tmp_path, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.val_set.inputs, again.val_set.inputs)
    assert not torch.equal(first.val_set.inputs, other.val_set.inputs)
    rows = torch.cat([first.train_set.inputs, first.val_set.inputs])
    same = torch.cat([other.train_set.inputs, other.val_set.inputs])
    assert sorted(rows.tolist()) == sorted(same.tolist())


def test_workers_change_no_batch(tmp_path):
    write_multilabel(tmp_path)
    batches = [
        torch.cat([x for x, _ in set_up(tmp_path, batch_size=4, num_workers=n).train_dataloader()]) for n in (0, 2)
    ]
    assert torch.equal(*batches)


def test_other_labels_than_the_xml_names(tmp_path):
    write_multilabel(tmp_path)
    xml = tmp_path / "bibtex.xml"
    whole = xml.read_text()
    xml.write_text(whole.replace('<label name="T1"></label>\n', ""))
    with pytest.raises(ValueError, match=r"bibtex-train.arff: expected features and then the 2 labels .* with 2 of"):
        set_up(tmp_path)
    xml.write_text(whole.replace("T1", "Z"))
    with pytest.raises(ValueError, match=r"the 3 labels of the xml file, got 9 attributes with 2 of these"):
        set_up(tmp_path)
    for broken in (whole[:-9], "<labels></labels>"):
        xml.write_text(broken)
        with pytest.raises(ValueError, match=r"bibtex.xml: expected"):
            set_up(tmp_path)


def test_labels_that_are_none(tmp_path):
    write_multilabel(tmp_path, sparse=False)
    path = tmp_path / "bibtex-test.arff"
    path.write_text(path.read_text() + "0,0,0,0,0,0,0,2,0\n")
    with pytest.raises(ValueError, match="expected labels 0 and 1, got others"):
        set_up(tmp_path)


def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="name: expected bibtex or mediamill, got 'enron'"):
        MultiLabel("enron")
    with pytest.raises(FileNotFoundError, match="expected mediamill-train.arff in"):
        MultiLabel("mediamill", tmp_path, download=False).prepare_data()


def test_the_real_files(shared_data):
    bibtex = set_up(shared_data / "multilabel")
    assert (len(bibtex.train_set), len(bibtex.val_set), len(bibtex.test_set)) == (3904, 976, 2515)
    assert bibtex.test_set.inputs.shape[1] == 1836
    assert bibtex.test_set.targets.sum(1).mean().item() == pytest.approx(2.44, abs=5e-3)
    mediamill = MultiLabel("mediamill", shared_data / "multilabel", download=False)
    mediamill.setup("test")
    assert mediamill.test_set.inputs.shape == (12_914, 120)
    assert mediamill.test_set.targets.shape == (12_914, 101)
    assert mediamill.test_set.targets.sum(1).mean().item() == pytest.approx(4.41, abs=5e-3)
    assert (mediamill.test_set.targets.sum(1) == 0).sum() == 541


def test_labels_come_in_the_order_of_the_xml_file(tmp_path):
    write_multilabel(tmp_path, sparse=False)
    before = set_up(tmp_path)
    path = tmp_path / "bibtex-test.arff"
    text = path.read_text().replace("@attribute T0", "@attribute T").replace("@attribute T2", "@attribute T0")
    path.write_text(text.replace("@attribute T ", "@attribute T2 "))  # as if columns lay the other way round
    assert torch.equal(set_up(tmp_path).test_set.targets, before.test_set.targets.flip(1))


def test_files_of_other_features_do_not_fit_each_other(tmp_path):
    write_multilabel(tmp_path)
    path = tmp_path / "bibtex-test.arff"
    path.write_text(path.read_text().replace("F3", "G3"))
    with pytest.raises(ValueError, match=r"bibtex-test.arff: expected the 6 features of the other file of the set"):
        set_up(tmp_path)
    write_multilabel(tmp_path / "other", features=5)
    (tmp_path / "other" / "bibtex-test.arff").replace(path)
    with pytest.raises(ValueError, match=r"bibtex-test.arff: expected the 6 features .* got 5, from 'F0' to 'F4'"):
        set_up(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b'<?xml version="1.0" encoding="no-such"?><labels/>', b"<labels><label name='T0'/><label name='T0'/></labels>"],
)
def test_an_xml_file_that_is_none_is_named(tmp_path, content):
    write_multilabel(tmp_path)
    (tmp_path / "bibtex.xml").write_bytes(content)
    with pytest.raises(ValueError, match=r"bibtex.xml: expected"):
        set_up(tmp_path)


def test_too_few_samples_to_validate_are_an_error_that_names_the_file(tmp_path):
    path = write_multilabel(tmp_path) / "bibtex-train.arff"
    path.write_text("\n".join(path.read_text().splitlines()[:-16]))  # cut between two rows
    with pytest.raises(ValueError, match=r"bibtex-train.arff: expected 5 samples or more, .* got 4"):
        set_up(tmp_path)
