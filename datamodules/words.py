"""Word language modelling: a text, its vocabulary, and loaders of successive windows."""

from abc import ABC, abstractmethod
from operator import itemgetter
from pathlib import Path

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from datamodules.batched import Batch, Loader
from datamodules.files import DataFile, read_file, text_of
from datamodules.resumable import ResumableLoader
from datamodules.streams import Share, TokenStreams
from datamodules.token_cache import Row, cached

END_OF_LINE = "<eos>"
RULE = b"sorted words of the training file, an <eos> a line"  # a new one makes the cache new


class WordStreams(LightningDataModule, ABC):
    """A text of words in three files, as contiguous streams whose windows follow each other.

    The vocabulary is that of the training file, sorted, with one ``<eos>`` a line. Words are numbered once, by
    ``prepare_data``, and read from the cache of Hugging Face ``datasets`` by all processes and later runs; where that
    cannot be written, each numbers them itself.

    Args:
        root: folder with the three files. Files that are there are only read; missing ones are downloaded into it.
        seq_len: steps of a window.
        batch_size: training streams on each device.
        eval_batch_size: validation and test streams on each device.
        num_workers: worker processes of each loader. They change no batch.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.
    """

    def __init__(
        self,
        root: str | Path,
        seq_len: int,
        batch_size: int,
        eval_batch_size: int,
        num_workers: int,
        pin_memory: bool,
        download: bool,
    ) -> None:
        super().__init__()
        self.root = Path(root)
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.download = download

    @property
    @abstractmethod
    def files(self) -> dict[str, DataFile]:
        """The files of "train", "valid" and "test"."""

    def prepare_data(self) -> None:
        """Downloads the files that are missing, checked by their sha256, and numbers the words for all processes."""
        for file in self.files.values():
            file.prepare(self.root, self.download)
        self._numbers()

    def setup(self, stage: str | None = None) -> None:
        """Reads the three files as numbers, once."""
        if hasattr(self, "tokens"):
            return
        numbers = self._numbers()
        self.vocabulary: list[str] = numbers["vocabulary"]
        self.tokens: dict[str, Tensor] = {part: numbers[part] for part in self.files}

    def _numbers(self) -> Row:
        """The vocabulary, and the words of each part by their place in it."""
        paths = {part: file.find(self.root) for part, file in self.files.items()}
        contents = {part: read_file(path) for part, path in paths.items()}

        def number() -> Row:
            words = {part: words_of(contents[part], path) for part, path in paths.items()}
            vocabulary = sorted(set(words["train"]))
            return {
                "vocabulary": vocabulary,
                **{part: numbered(vocabulary, words[part], paths[part]) for part in paths},
            }

        return cached(number, RULE, *contents.values())

    def train_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the training windows, in order."""
        loader = self._loader("train", self.batch_size, ResumableLoader)
        loader.trainer = self.trainer
        return loader

    def val_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the validation windows, in order."""
        return self._loader("valid", self.eval_batch_size, DataLoader)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test windows, in order."""
        return self._loader("test", self.eval_batch_size, DataLoader)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test windows, in order."""
        return self._loader("test", self.eval_batch_size, DataLoader)

    def _loader(self, part: str, batch_size: int, kind: type[Loader]) -> Loader:
        share = Share(**((self.trainer.distributed_sampler_kwargs if self.trainer else None) or {}))
        streams = TokenStreams(self.tokens[part], batch_size, self.seq_len, share)
        return kind(
            streams,
            batch_size=1,  # a window of all streams
            collate_fn=itemgetter(0),
            # each process has its own streams already: a sampler that says so keeps Lightning from sharing them again
            sampler=DistributedSampler(streams, num_replicas=1, rank=0, shuffle=False),
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=self.pin_memory,
        )


def words_of(content: bytes, path: Path) -> list[str]:
    r"""Splits a file into its words, with an ``<eos>`` at the end of each line.

    Raises:
        ValueError: if it is not in UTF-8, or there are none; it names the ``path``.

    Example:
        >>> words_of(b"no\nyes\n", Path("train.txt"))
        ['no', '<eos>', 'yes', '<eos>']
    """
    words = text_of(content, path).replace("\n", f" {END_OF_LINE} ").split()
    if not set(words) - {END_OF_LINE}:
        raise ValueError(f"{path}: expected words, got {len(words)} ends of lines alone; remove it and try again.")
    return words


def numbered(vocabulary: list[str], words: list[str], path: Path) -> Tensor:
    """Numbers words by their place in a vocabulary.

    Raises:
        ValueError: if a word is not in it; it names the ``path`` and the line.

    Example:
        >>> numbered(["<eos>", "no", "yes"], ["yes", "no", "<eos>"], Path("valid.txt"))
        tensor([2, 1, 0])
    """
    number = {word: i for i, word in enumerate(vocabulary)}
    unknown = sorted(set(words) - number.keys())
    if unknown:
        line = words[: words.index(unknown[0])].count(END_OF_LINE) + 1
        raise ValueError(
            f"{path}: expected words of the training file, got {len(unknown)} others, {unknown[0]!r} first, "
            f"in line {line}."
        )
    return torch.tensor([number[word] for word in words], dtype=torch.int64)
