"""The UCR archive of time series."""

import difflib
import math
import zipfile
from pathlib import Path

import numpy as np
import torch

from datamodules.batched import BatchedDataModule
from datamodules.downloads import fetch
from datamodules.files import find_file
from datamodules.series import read_series
from datamodules.tensors import Tensors
from datamodules.ucr_names import NAMES_2015, NAMES_2018
from datamodules.writing import written

ARCHIVE = "UCRArchive_2018"
SOURCE = f"https://www.cs.ucr.edu/~eamonn/time_series_data_2018/{ARCHIVE}.zip"
PASSWORD = b"someone"  # published with the archive
OTHER_PART = {"TRAIN": "TEST", "TEST": "TRAIN"}
# the archive of 2018 has train and test of these the other way round from that of 2015, which the paper uses
SWAPPED = {"DistalPhalanxOutlineCorrect", "DistalPhalanxTW", "MiddlePhalanxOutlineCorrect", "MiddlePhalanxTW"}


class UCRArchive(BatchedDataModule):
    """One set of the UCR archive of time series (Appendix C.1 of the paper), as sequences to classify.

    An input has the shape ``(batch, steps, input_size)``, float32: a series of ``steps * input_size`` values, cut into
    steps. The target of shape ``(batch,)``, int64 in ``0 … num_classes - 1``, is the place of the series' label among
    the labels of the set, in order.

    Validation is a fifth of the training series, of each class alike, drawn by ``seed``. The split into training and
    test series is that of the archive of 2015.

    Args:
        name: name of the set, as in the archive of 2015 or of 2018: ``Gun_Point`` or ``GunPoint``.
        root: folder with ``NAME/NAME_TRAIN.tsv`` and ``NAME/NAME_TEST.tsv``, plain or as ``.gz``, with the extracted
            official archive ``UCRArchive_2018``, that folder itself, or one with its zip file. Files that are there are
            only read. The zip file (316 MB) is downloaded if there is nothing, and the set extracted, checked by the
            archive's CRC-32.
        input_size: values in a step; None: the largest divisor of the length that is at most its square root.
        batch_size: series in a batch, on each device.
        num_workers: worker processes of each loader. They change no batch.
        seed: seed of the split and of the order of the training series.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.

    Raises:
        ValueError: if ``name`` is no set of the archive, ``input_size`` no divisor of the length, or a file does not
            hold series of one length.
        FileNotFoundError: when a file is missing and ``download`` is false.

    Example:
        >>> UCRArchive("GunPiont")
        Traceback (most recent call last):
        ValueError: name: expected a set of the UCR archive, got 'GunPiont'; near it are GunPoint, ...
    """

    name: str
    train_set: Tensors
    val_set: Tensors
    test_set: Tensors

    def __init__(
        self,
        name: str,
        root: str | Path = "data/ucr",
        input_size: int | None = None,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int = 0,
        pin_memory: bool = False,
        download: bool = True,
    ) -> None:
        if name not in NAMES_2018 and name not in NAMES_2015:
            near = difflib.get_close_matches(name, [*NAMES_2018, *NAMES_2015], cutoff=0.4)
            raise ValueError(
                f"name: expected a set of the UCR archive, got {name!r}; near it are {', '.join(near) or 'none'}."
            )
        super().__init__(batch_size, num_workers, seed, pin_memory)
        self.name = name
        self.root = Path(root)
        self.input_size = input_size
        self.download = download

    @property
    def baseline_accuracy(self) -> float:
        """The share of test series that have the most frequent training label; known after ``setup``."""
        most_frequent = torch.cat([self.train_set.targets, self.val_set.targets]).mode().values
        return (self.test_set.targets == most_frequent).float().mean().item()

    def prepare_data(self) -> None:
        """Extracts the set from the archive, which is downloaded before if it is missing."""
        try:
            self._find()
        except FileNotFoundError:
            archive = self.root / f"{ARCHIVE}.zip"
            if not archive.is_file():
                if not self.download:
                    raise
                fetch(SOURCE, archive)
            for part in OTHER_PART:
                extract(archive, self._member(part))

    def setup(self, stage: str | None = None) -> None:
        """Reads the set and splits it."""
        if hasattr(self, "test_set"):
            return
        paths = self._find()
        train, test = map(read_series, paths)
        labels = sorted(set(train[:, 0]) | set(test[:, 0]))
        length = train.shape[1] - 1
        size = usual_input_size(length) if self.input_size is None else self.input_size
        if test.shape[1] - 1 != length:
            raise ValueError(
                f"{self.name}: expected test series of length {length}, got {test.shape[1] - 1} in {paths[1]}."
            )
        if not 1 <= size <= length or length % size:
            raise ValueError(f"input_size: expected a divisor of {length}, the length of a series, got {size}.")

        def sequences(rows: np.ndarray) -> Tensors:
            series = torch.tensor(rows[:, 1:], dtype=torch.float32)
            return Tensors(series.reshape(len(rows), -1, size), torch.from_numpy(np.searchsorted(labels, rows[:, 0])))

        val = stratified_fifth(train[:, 0], self.seed)
        self.train_set, self.val_set, self.test_set = sequences(train[~val]), sequences(train[val]), sequences(test)
        self.input_size = size
        self.num_classes = len(labels)

    def _find(self) -> list[Path]:
        """The files of training and of test series, both from one place, since the archives' splits differ."""
        names = dict.fromkeys((self.name, NAMES_2015.get(self.name, self.name)))
        archived = [self._member(part) for part in OTHER_PART]
        places = [[f"{name}/{name}_{part}.tsv" for part in OTHER_PART] for name in names]
        if self.root.resolve().name == ARCHIVE:
            places = [[member.removeprefix(f"{ARCHIVE}/") for member in archived]]
        for place in (*places, archived):
            try:
                return [find_file(self.root, name) for name in place]
            except FileNotFoundError:
                continue
        for parts in zip(*places, archived, strict=True):
            find_file(self.root, *parts)
        raise FileNotFoundError(f"root: expected both files of {self.name} in one folder of {self.root.absolute()}.")

    def _member(self, part: str) -> str:
        """The path of the part in the official archive."""
        official = NAMES_2015.get(self.name, self.name)
        return f"{ARCHIVE}/{official}/{official}_{OTHER_PART[part] if official in SWAPPED else part}.tsv"


def usual_input_size(length: int) -> int:
    """Returns the largest divisor of ``length`` that is at most its square root, as Table 4 of the paper has it.

    Example:
        >>> usual_input_size(128), usual_input_size(251)
        (8, 1)
    """
    return max(divisor for divisor in range(1, math.isqrt(length) + 1) if length % divisor == 0)


def stratified_fifth(labels: np.ndarray, seed: int) -> np.ndarray:
    """Chooses a fifth of the samples of each class, rounded.

    Args:
        labels: labels of the samples, ``(n,)``.
        seed: seed of the choice.

    Returns:
        Which samples are chosen, ``(n,)``, boolean.

    Raises:
        ValueError: if there are too few samples to choose any.

    Example:
        >>> stratified_fifth(np.array([1, 1, 1, 2, 2, 2, 2, 2]), seed=0).tolist().count(True)
        2
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    chosen = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = order[labels[order] == label]
        chosen[members[: round(len(members) / 5)]] = True
    if not chosen.any():
        raise ValueError("name: expected a class of at least 3 training series, to have one for validation.")
    return chosen


def extract(archive: Path, member: str) -> None:
    """Extracts a file of the archive beside it; it appears under its name only when it is whole.

    Raises:
        ValueError: if the archive is damaged or has no such file.
        OSError: if the archive cannot be read, or its folder not be written to.
    """
    with archive.open("rb") as opened:
        try:
            with zipfile.ZipFile(opened) as file:
                content = file.read(member, PASSWORD)
        except Exception as error:  # what is damaged in one of many ways fails in as many
            raise ValueError(
                f"{archive}: expected the UCR archive with {member} ({error!r}); remove it and try again."
            ) from error
    with written(archive.parent / member) as place:
        place.write_bytes(content)
