import gzip
import math
import shutil
import struct
from pathlib import Path

import pytest
import torch
import torchvision

from datamodules import FlatMNIST, PixelMNIST


def small(root, **kwargs) -> PixelMNIST:
    return PixelMNIST(root, **{"seq_len": 28, "val_size": 20, "download": False, **kwargs})


def set_up(data: PixelMNIST) -> PixelMNIST:
    data.prepare_data()
    data.setup()
    return data


def extract(source, target):
    for path in (source / "MNIST" / "raw").iterdir():
        (target / path.stem).write_bytes(gzip.decompress(path.read_bytes()))


@pytest.mark.parametrize(("seq_len", "input_size"), [(28, 28), (392, 2), (784, 1)])
def test_shapes_and_pixels(small_mnist, seq_len, input_size):
    data = set_up(small(small_mnist, seq_len=seq_len, batch_size=16))
    assert data.input_size == input_size
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (80, 20, 40)
    inputs, labels = next(iter(data.test_dataloader()))
    assert inputs.shape == (16, seq_len, input_size)
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64
    pixels = (inputs * 255).round().to(torch.uint8).reshape(16, 28, 28)
    assert torch.equal(pixels, data.test_set.images[:16].reshape(16, 28, 28))


def test_images_and_labels_are_torchvisions(small_mnist, tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    extract(small_mnist, folder)
    reference = torchvision.datasets.MNIST(tmp_path, train=False)
    for root in (small_mnist, tmp_path):
        data = set_up(small(root))
        assert torch.equal(data.test_set.images.reshape(-1, 28, 28), reference.data)
        assert torch.equal(data.test_set.labels, reference.targets)


def test_split_is_a_partition_drawn_by_seed(small_mnist):
    first, again, other = (set_up(small(small_mnist, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(first.val_set.images, again.val_set.images)
    assert not torch.equal(first.val_set.images, other.val_set.images)
    images = torch.cat([first.train_set.images, first.val_set.images])
    assert len(images.unique(dim=0)) == 100


def test_permutation_is_one_for_all_images_and_seeds(small_mnist):
    plain = set_up(small(small_mnist)).test_set.images
    permuted, other = (set_up(small(small_mnist, permute=True, seed=seed)).test_set.images for seed in (0, 1))
    assert torch.equal(permuted, other)
    assert not torch.equal(permuted, plain)
    # columns sorted as vectors: the same columns in another order
    columns = plain.T[torch.tensor(sorted(range(784), key=lambda i: plain[:, i].tolist()))]
    again = permuted.T[torch.tensor(sorted(range(784), key=lambda i: permuted[:, i].tolist()))]
    assert torch.equal(columns, again)


def test_workers_change_no_batch(small_mnist):
    loaders = [set_up(small(small_mnist, num_workers=n, batch_size=16)).train_dataloader() for n in (0, 2)]
    orders = []
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        alone, workers = (torch.cat([labels for _, labels in loader]) for loader in loaders)
        assert torch.equal(alone, workers)
        orders.append(alone)
    assert not torch.equal(*orders)


def test_reading_writes_nothing(small_mnist):
    before = sorted(small_mnist.rglob("*"))
    set_up(small(small_mnist, download=True))
    assert sorted(small_mnist.rglob("*")) == before


def test_missing_files_are_named(small_mnist, tmp_path):
    shutil.copytree(small_mnist, tmp_path, dirs_exist_ok=True)
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected MNIST/raw/t10k-labels-idx1-ubyte in /.*, but"):
        small(tmp_path).prepare_data()


def test_missing_files_are_downloaded(monkeypatch, small_mnist, tmp_path):
    def download(root, download):
        assert download
        shutil.copytree(small_mnist, root, dirs_exist_ok=True)

    monkeypatch.setattr(torchvision.datasets, "MNIST", download)
    data = set_up(small(tmp_path / "new", download=True))
    assert torch.equal(data.test_set.images, set_up(small(small_mnist)).test_set.images)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["MNIST"]


def test_a_broken_download_leaves_nothing(monkeypatch, small_mnist, tmp_path):
    def download(root, download):
        (Path(root) / "train-images-idx3-ubyte.gz").write_bytes(b"half of it")
        raise RuntimeError("Error downloading")

    monkeypatch.setattr(torchvision.datasets, "MNIST", download)
    with pytest.raises(OSError, match=r"expected MNIST/raw/train-images.*Error downloading"):
        small(tmp_path, download=True).prepare_data()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_root_that_cannot_be_written(monkeypatch):
    with pytest.raises(OSError, match=r"expected MNIST/raw/train-images.* in /proc/nothing"):
        small("/proc/nothing", download=True).prepare_data()


def test_flat_images_are_the_same(small_mnist):
    flat = set_up(FlatMNIST(small_mnist, val_size=20))
    pixels = set_up(small(small_mnist))
    inputs, labels = next(iter(flat.test_dataloader()))
    sequences, same = next(iter(pixels.test_dataloader()))
    assert inputs.shape == (40, 784)
    assert torch.equal(inputs, sequences.flatten(1))
    assert torch.equal(labels, same)
    assert torch.equal(flat.val_set.images, pixels.val_set.images)


def test_bad_arguments(small_mnist):
    with pytest.raises(ValueError, match="seq_len: expected 28, 392 or 784, got 100"):
        PixelMNIST(seq_len=100)
    for val_size in (0, 100):
        with pytest.raises(ValueError, match=f"val_size: expected from 1 to 99, got {val_size}"):
            small(small_mnist, val_size=val_size).setup("fit")


def test_the_real_files(shared_data):
    data = set_up(PixelMNIST(shared_data / "mnist", seq_len=28, download=False))
    assert (len(data.train_set), len(data.val_set), len(data.test_set)) == (55_000, 5_000, 10_000)
    assert data.test_set.images.float().mean().item() / 255 == pytest.approx(0.1325, abs=1e-4)
    train = torch.cat([data.train_set.images, data.val_set.images])
    assert train.float().mean().item() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert torch.equal(data.test_set.labels.unique(), torch.arange(10))


def zeros(*shape: int) -> bytes:
    return struct.pack(f">4B{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(math.prod(shape))


@pytest.mark.parametrize("part", ["train", "t10k"])
@pytest.mark.parametrize(
    ("kind", "content", "said"),
    [
        ("labels-idx1", zeros(101), r"expected labels of shape \((100|40),\), one for each image of .*, got \(101,\)"),
        ("labels-idx1", zeros(39), r"expected labels of shape \((100|40),\), one for each image of .*, got \(39,\)"),
        ("labels-idx1", zeros(20, 2), r"expected labels of shape"),
        ("labels-idx1", zeros(40, 28, 28), r"expected labels of shape"),
        ("labels-idx1", zeros(0), r"expected entries"),
        ("images-idx3", zeros(40, 27, 27), r"expected images of shape \(n, 28, 28\), got \(40, 27, 27\)"),
        ("images-idx3", zeros(40, 784), r"expected images of shape \(n, 28, 28\), got \(40, 784\)"),
        ("images-idx3", zeros(0, 28, 28), r"expected entries in each dimension"),
        ("images-idx3", zeros(40), r"expected images of shape"),
        ("images-idx3", b"\0\0\x09" + zeros(40, 28, 28)[3:], r"expected an idx file of unsigned bytes"),
        ("images-idx3", b"\1" + zeros(40, 28, 28)[1:], r"expected an idx file of unsigned bytes"),
        ("images-idx3", zeros(40, 28, 28)[:-1], r"expected 31360 bytes"),
        ("images-idx3", b"", r"expected an idx file"),
    ],
)
def test_files_that_do_not_fit_each_other_are_errors_that_name_the_file(
    small_mnist, tmp_path, part, kind, content, said
):
    shutil.copytree(small_mnist, tmp_path, dirs_exist_ok=True)
    (tmp_path / "MNIST" / "raw" / f"{part}-{kind}-ubyte").write_bytes(content)  # taken before the .gz
    with pytest.raises(ValueError, match=rf"{part}-{kind}-ubyte: {said}"):
        set_up(small(tmp_path))


def test_a_label_above_nine_is_an_error_that_names_the_file(small_mnist, tmp_path):
    shutil.copytree(small_mnist, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[30] = 10
    path.write_bytes(gzip.compress(content))
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.gz: expected labels from 0 to 9, got 10; remove it"):
        set_up(small(tmp_path))
