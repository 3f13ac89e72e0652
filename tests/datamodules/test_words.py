import shutil
from types import SimpleNamespace

import pytest
import torch

from datamodules import PennTreebank, WikiText2
from datamodules.streams import Share, TokenStreams
from tests.small_data import write_words


def windows(streams: TokenStreams) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*(streams[i] for i in range(len(streams))), strict=True)
    return torch.cat(inputs, dim=1), torch.cat(targets, dim=1)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("count", "batch_size", "seq_len"), [(50, 1, 7), (51, 3, 8), (53, 4, 5), (60, 4, 1)])
def test_every_token_is_a_target_once(count, batch_size, seq_len, ranks):
    tokens = torch.arange(100, 100 + count)
    shares = [TokenStreams(tokens, batch_size, seq_len, Share(ranks, rank)) for rank in range(ranks)]
    inputs, targets = (torch.cat(parts) for parts in zip(*map(windows, shares), strict=True))
    assert len({len(share) for share in shares}) == 1
    assert len(inputs) == batch_size * ranks
    real = targets != -100
    assert torch.equal(targets[real], tokens[1:])  # contiguous: stream after stream
    assert torch.equal(targets[real] - 1, inputs[real])
    assert (~real).sum(1).max() <= 1
    assert not (~real[:, :-1]).any()


def test_a_window_longer_than_the_text():
    with pytest.raises(ValueError, match=r"seq_len: expected from 1 to 4, .* 2 streams over 10 tokens, got 5"):
        TokenStreams(torch.arange(10), batch_size=2, seq_len=5)
    with pytest.raises(IndexError):
        TokenStreams(torch.arange(10), batch_size=2, seq_len=3)[2]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PennTreebank, "ptb.{}.txt"),
        (PennTreebank, "simple-examples/data/ptb.{}.txt"),
        (WikiText2, "{}.txt"),
        (WikiText2, "wiki.{}.tokens"),
    ],
)
def test_reads_words(kind, name, tmp_path):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    write_words(tmp_path, name)
    data = kind(tmp_path, seq_len=5, batch_size=4, eval_batch_size=2, download=False)
    data.prepare_data()
    data.setup("fit")
    text = (tmp_path / name.format("valid")).read_text()
    assert data.vocabulary == ["<eos>", *(f"w{i}" for i in range(9))]
    words = [data.vocabulary[i] for i in data.tokens["valid"]]
    assert words == [word for line in text.splitlines() for word in [*line.split(), "<eos>"]]
    inputs, targets = next(iter(data.train_dataloader()))
    assert inputs.shape == targets.shape == (4, 5)


def test_windows_are_in_order_with_workers(tmp_path):
    write_words(tmp_path)
    batches = []
    for workers in (0, 2):
        data = PennTreebank(tmp_path, seq_len=5, batch_size=4, num_workers=workers)
        data.setup()
        batches.append(torch.cat([inputs for inputs, _ in data.train_dataloader()], dim=1))
    assert torch.equal(*batches)
    assert torch.equal(batches[0].flatten()[:50], data.tokens["train"][:50])


def test_each_rank_has_its_own_streams(tmp_path):
    write_words(tmp_path)
    texts = []
    for rank in range(2):
        data = PennTreebank(tmp_path, seq_len=5, batch_size=2)
        data.trainer = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": rank})
        data.setup()
        texts.append(torch.cat([targets for _, targets in data.train_dataloader()], dim=1))
    seen = torch.cat(texts)
    assert torch.equal(seen[seen != -100], data.tokens["train"][1:])


def test_words_that_training_lacks(tmp_path):
    write_words(tmp_path)
    (tmp_path / "ptb.test.txt").write_text("w1 zebra aardvark\n")
    with pytest.raises(ValueError, match="expected words of the training file, got 2 others, 'aardvark' first"):
        PennTreebank(tmp_path).setup()


def test_a_file_that_is_no_text(tmp_path):
    write_words(tmp_path)
    (tmp_path / "ptb.valid.txt").write_bytes(b"w1 \xff\n")
    with pytest.raises(ValueError, match=r"ptb.valid.txt: expected a text in UTF-8, .* position 3"):
        PennTreebank(tmp_path).setup()


def test_words_are_numbered_once(tmp_path, monkeypatch):
    texts = write_words(tmp_path / "texts")
    PennTreebank(texts).prepare_data()
    numbers = PennTreebank(texts)
    with monkeypatch.context() as patch:
        patch.setattr("datamodules.words.numbered", None)  # as if another process could not do it
        numbers.setup()
        PennTreebank(shutil.copytree(texts, tmp_path / "copy")).setup()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", "/dev/null")
    again = PennTreebank(texts)
    again.prepare_data()
    again.setup()
    assert numbers.vocabulary == again.vocabulary
    assert all(torch.equal(numbers.tokens[part], again.tokens[part]) for part in ("train", "valid", "test"))

    (texts / "ptb.test.txt").write_text("w1 w2\n")
    changed = PennTreebank(texts)
    changed.setup()
    assert changed.tokens["test"].tolist() == [2, 3, 0]


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected ptb.train.txt in .*simple-examples/data/ptb.train.txt"):
        PennTreebank(tmp_path, download=False).prepare_data()


@pytest.mark.parametrize(
    ("kind", "folder", "counts", "words"),
    [
        (PennTreebank, "ptb", {"train": 929_589, "valid": 73_760, "test": 82_430}, 10_000),
        (WikiText2, "wikitext-2", {"train": 2_088_628, "valid": 217_646, "test": 245_569}, 33_278),
    ],
)
def test_the_real_files(kind, folder, counts, words, shared_data):
    data = kind(shared_data / folder, download=False)
    data.prepare_data()
    data.setup()
    assert {part: len(tokens) for part, tokens in data.tokens.items()} == counts
    assert len(data.vocabulary) == words


def test_reading_writes_nothing(tmp_path):
    before = sorted(write_words(tmp_path / "ptb").rglob("*"))
    data = PennTreebank(tmp_path / "ptb")
    data.prepare_data()
    data.setup()
    assert sorted((tmp_path / "ptb").rglob("*")) == before
    shutil.rmtree(tmp_path / "ptb")


@pytest.mark.parametrize("part", ["train", "valid", "test"])
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_named_itself(tmp_path, part, text):
    write_words(tmp_path)
    (tmp_path / f"ptb.{part}.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"ptb.{part}.txt: expected words, got {text.count(chr(10))} ends of lines"):
        PennTreebank(tmp_path).setup()


def test_a_byte_order_mark_is_no_part_of_the_first_word(tmp_path):
    write_words(tmp_path)
    path = tmp_path / "ptb.train.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    data = PennTreebank(tmp_path)
    data.setup()
    assert data.vocabulary == ["<eos>", *(f"w{i}" for i in range(9))]


def test_an_unknown_word_or_another_encoding_names_its_line(tmp_path):
    write_words(tmp_path)
    path = tmp_path / "ptb.test.txt"
    path.write_text("w1\nw2 zebra\nw3 zebra\n")
    with pytest.raises(ValueError, match=r"ptb.test.txt: expected words .*, got 1 others, 'zebra' first, in line 2"):
        PennTreebank(tmp_path).setup()
    path.write_bytes("w1\nw2 é\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"ptb.test.txt: expected a text in UTF-8, got the byte 0xe9 in line 2"):
        PennTreebank(tmp_path).setup()
