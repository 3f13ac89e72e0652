"""WikiText-2 as words."""

from pathlib import Path

from datamodules.files import DataFile
from datamodules.words import WordStreams

SOURCE = (
    "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8"
    "/word_language_model/data/wikitext-2"
)
SHA256 = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}
FILES = {
    # the alias is the name in the archive of its authors
    part: DataFile(f"{part}.txt", f"{SOURCE}/{part}.txt", sha256, aliases=(f"wiki.{part}.tokens",))
    for part, sha256 in SHA256.items()
}


class WikiText2(WordStreams):
    """WikiText-2: articles of Wikipedia, 33,278 words; not in the paper, twice as long as the Penn Treebank.

    Inputs and targets have the shape ``(batch, seq_len)``, int64 in 0 … 33,277; a target is the next word, or -100
    where a stream has ended. Each row of a batch goes on where the same row of the batch before stopped. The original
    files have 2,088,628 training, 217,646 validation and 245,569 test words, with one ``<eos>`` a line.

    Over several devices each reads its own streams; every word is a target once an epoch.
    The words are numbered once and kept in the cache of Hugging Face ``datasets``, where ``HF_DATASETS_CACHE`` says.

    Args:
        root: folder with the three files, ``train.txt``, ``valid.txt`` and ``test.txt``, plain or as
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
        >>> WikiText2("data/wikitext-2", seq_len=35).seq_len
        35
    """

    def __init__(
        self,
        root: str | Path = "data/wikitext-2",
        seq_len: int = 70,
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
