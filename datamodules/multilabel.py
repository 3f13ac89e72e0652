"""Multi-label sets in MULAN's format."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from xml.etree import ElementTree

import torch
from torch import Tensor

from datamodules.arff import read_arff
from datamodules.batched import Batch, BatchedDataModule
from datamodules.files import DataFile, read_file
from datamodules.tensors import Tensors

Name = Literal["bibtex", "mediamill"]
SOURCES = {
    "bibtex": "https://raw.githubusercontent.com/tsoumakas/mulan/43f6389095ad71984264db4387a8074b22bc7d4a"
    "/data/multi-label/bibtex",
    "mediamill": "https://raw.githubusercontent.com/YoungHJung/OnlineMLRBoostingWithVFDT"
    "/83eab85bfe99a8486ea3e6470dd5a679786b08c6/data/mediamill",
}
SHA256 = {
    "bibtex-train.arff": "8dcc9de6e0b2cebaec8c1f4fac78431adeeb73cfd3ab879b530a66d366e59174",
    "bibtex-test.arff": "9b03329cde64d3f994bdf7fbbac3f3b10fe185c311cb9ae725475f59c7f3f922",
    "bibtex.xml": "08fe20013c1e75dcf1888c185f5187c95e76495b8518ce289b4d3afce38d1232",
    "mediamill-train.arff": "a47c1c100077106eb9aa2410ea7ad28ca75086b26f983fc46595c6167c17800c",
    "mediamill-test.arff": "44d75cfb7f93e642a60e694371134b8c3024b6da0d879f1a51ea6d566be7ff02",
    "mediamill.xml": "960991532485541a885868c269bf454a6ecdcea3f821ad29ae516eaa5a1bd43b",
}


class MultiLabel(BatchedDataModule):
    """Bibtex or Mediamill (Appendix C.1.1 of the paper): samples with any number of labels.

    An input has the shape ``(batch, input_size)``, float32: 1,836 zeros and ones of Bibtex, 120 numbers in (0, 1) of
    Mediamill. The target of shape ``(batch, num_labels)``, float32, has a 1 at each label of the sample; there are 159
    and 101. With the original files there are 4,880 and 30,993 samples to train and validate, 2,515 and 12,914 to test.

    Validation is a fifth of the training samples, drawn by ``seed``.

    Args:
        name: "bibtex" or "mediamill".
        root: folder with ``NAME-train.arff``, ``NAME-test.arff`` and ``NAME.xml``, plain or as ``.gz``. Files that are
            there are only read; missing ones are downloaded into it.
        batch_size: samples in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the split and of the order of the training samples.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.

    Raises:
        ValueError: if ``name`` is another, a file does not hold the labels that the xml file names, or the two files
            have other features.
        FileNotFoundError: when a file is missing and ``download`` is false.

    Example:
        >>> MultiLabel("bibtex", root="data/multilabel").name
        'bibtex'
    """

    name: Name

    def __init__(
        self,
        name: Name,
        root: str | Path = "data/multilabel",
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
        download: bool = True,
    ) -> None:
        if name not in get_args(Name):
            raise ValueError(f"name: expected {' or '.join(get_args(Name))}, got {name!r}.")
        super().__init__(batch_size, num_workers, seed, pin_memory)
        self.name = name
        self.root = Path(root)
        self.download = download
        self._features: list[str] = []  # none before a file is read

    def prepare_data(self) -> None:
        """Downloads the files that are missing, checked by their sha256."""
        for file in self._files():
            file.prepare(self.root, self.download)

    def setup(self, stage: str | None = None) -> None:
        """Reads the training samples to fit or validate, the test samples to test or predict."""
        train, test, xml = self._files()
        labels = label_names(xml.find(self.root))
        if stage in (None, "fit", "validate") and not hasattr(self, "train_set"):
            inputs, targets = self._read(train, labels)
            if len(inputs) < 5:
                path = train.find(self.root)
                raise ValueError(f"{path}: expected 5 samples or more, one of them to validate, got {len(inputs)}.")
            order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(self.seed))
            val, rest = order[: len(order) // 5], order[len(order) // 5 :]
            self.train_set = Tensors(inputs[rest], targets[rest])
            self.val_set = Tensors(inputs[val], targets[val])
        if stage in (None, "test", "predict") and not hasattr(self, "test_set"):
            self.test_set = Tensors(*self._read(test, labels))

    def _read(self, file: DataFile, labels: list[str]) -> Batch:
        """Inputs and targets, of the same features as in the file that was read before."""
        path = file.find(self.root)
        names, inputs, targets = read_samples(path, labels)
        if names != self._features and self._features:
            raise ValueError(
                f"{path}: expected the {len(self._features)} features of the other file of the set, in the same order, "
                f"got {len(names)}, from {names[0]!r} to {names[-1]!r}."
            )
        self._features = names
        return inputs, targets

    def _files(self) -> Iterable[DataFile]:
        for name in (f"{self.name}-train.arff", f"{self.name}-test.arff", f"{self.name}.xml"):
            yield DataFile(name, f"{SOURCES[self.name]}/{name}", SHA256[name])


class Samples(NamedTuple):
    """The names of the features, and features ``(n, features)`` and labels ``(n, labels)``, float32."""

    names: list[str]
    inputs: Tensor
    targets: Tensor


def label_names(path: Path) -> list[str]:
    """Reads the names of the labels from MULAN's xml file.

    Raises:
        ValueError: if it is no xml, or names none, or one twice.
    """
    content = read_file(path)
    try:
        names = [element.attrib["name"] for element in ElementTree.fromstring(content).iter() if element.attrib]
    except (ElementTree.ParseError, KeyError, ValueError, LookupError) as error:  # the last two of encodings
        raise ValueError(f"{path}: expected MULAN's xml file of labels, got another ({error!r}).") from error
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{path}: expected labels, each once, got {len(names)} with {len(set(names))} names.")
    return names


def read_samples(path: Path, labels: list[str]) -> Samples:
    """Reads the features and the labels of an arff file, whose last attributes are the labels.

    Args:
        path: the arff file.
        labels: names of the labels, in the order in which they are returned.

    Returns:
        The samples.

    Raises:
        ValueError: if the last attributes are others, or a label is neither 0 nor 1.
    """
    names, values = read_arff(path)
    count = len(names) - len(labels)
    if sorted(names[count:]) != sorted(labels) or count < 1:
        found = sum(name in set(labels) for name in names)
        raise ValueError(
            f"{path}: expected features and then the {len(labels)} labels of the xml file, "
            f"got {len(names)} attributes with {found} of these labels."
        )
    inputs = torch.from_numpy(values[:, :count].copy())
    targets = torch.from_numpy(values[:, [names.index(label) for label in labels]])
    if not ((targets == 0) | (targets == 1)).all():
        raise ValueError(f"{path}: expected labels 0 and 1, got others.")
    return Samples(names[:count], inputs, targets)
