"""Word language modelling: a text, its vocabulary, and loaders of successive windows."""

from abc import ABC, abstractmethod
from pathlib import Path

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from datamodules.batched import Batch
from datamodules.files import DataFile, read_file
from datamodules.streams import Share, TokenStreams

END_OF_LINE = "<eos>"


class WordStreams(LightningDataModule, ABC):
    """A text of words in three files, as contiguous streams whose windows follow each other.

    The vocabulary is that of the training file, sorted, with one ``<eos>`` a line.

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
        """Downloads the files that are missing, checked by their sha256."""
        for file in self.files.values():
            file.prepare(self.root, self.download)

    def setup(self, stage: str | None = None) -> None:
        """Reads the three files and numbers their words, once."""
        if hasattr(self, "tokens"):
            return
        words = {part: read_words(file.find(self.root)) for part, file in self.files.items()}
        self.vocabulary = sorted(set(words["train"]))
        self.tokens = {part: numbered(self.vocabulary, text) for part, text in words.items()}

    def train_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the training windows, in order."""
        return self._loader("train", self.batch_size)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the validation windows, in order."""
        return self._loader("valid", self.eval_batch_size)

    def test_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test windows, in order."""
        return self._loader("test", self.eval_batch_size)

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Returns the loader of the test windows, in order."""
        return self._loader("test", self.eval_batch_size)

    def _loader(self, part: str, batch_size: int) -> DataLoader[Batch]:
        share = Share(**((self.trainer.distributed_sampler_kwargs if self.trainer else None) or {}))
        streams = TokenStreams(self.tokens[part], batch_size, self.seq_len, share)
        return DataLoader(
            streams,
            batch_size=None,
            # each process has its own streams already: a sampler that says so keeps Lightning from sharing them again
            sampler=DistributedSampler(streams, num_replicas=1, rank=0, shuffle=False),
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
            pin_memory=self.pin_memory,
        )


def read_words(path: Path) -> list[str]:
    """Reads the words of a file, with an ``<eos>`` at the end of each line."""
    return read_file(path).decode("utf8").replace("\n", f" {END_OF_LINE} ").split()


def numbered(vocabulary: list[str], words: list[str]) -> Tensor:
    """Numbers words by their place in a vocabulary.

    Raises:
        ValueError: if a word is not in it.

    Example:
        >>> numbered(["<eos>", "no", "yes"], ["yes", "no", "<eos>"])
        tensor([2, 1, 0])
    """
    number = {word: i for i, word in enumerate(vocabulary)}
    unknown = sorted(set(words) - number.keys())
    if unknown:
        raise ValueError(f"root: expected words of the training file, got {len(unknown)} others, {unknown[0]!r} first.")
    return torch.tensor([number[word] for word in words])
