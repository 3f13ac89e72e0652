"""Two processes under Lightning's DDP: each sample once an epoch, ordered text in order."""

import warnings

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy

from datamodules import MultiLabel, PennTreebank
from lightning_modules import LanguageModel, MultiLabelClassifier
from tests.lightning_modules.tasks.test_language_model import SaveAt
from tests.small_data import write_multilabel, write_words
from tests.spectral_param.callbacks.test_parallel import InGroup


class Seen(Callback):
    """Keeps the inputs and targets that a rank has trained and been tested on."""

    def __init__(self):
        self.train, self.test = [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.train.append([part.clone() for part in batch])

    def on_test_batch_start(self, trainer, pl_module, batch, batch_idx, dataloader_idx=0):
        self.test.append([part.clone() for part in batch])


def language(root):
    model = LanguageModel(10, "spectral-rnn", hidden_size=8, reflectors=4)
    return model, PennTreebank(root, seq_len=7, batch_size=3, eval_batch_size=2, download=False)


def labels(root):
    model = MultiLabelClassifier(6, 3, depth=2, width=8, reflectors=4)
    return model, MultiLabel("bibtex", root, batch_size=4, download=False)


def run_on_a_rank(rank, make, root, folder):
    torch.manual_seed(0)
    model, data = make(root)
    seen = Seen()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, of many kinds in a process of its own
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy=DDPStrategy(cluster_environment=InGroup(rank)),
            max_epochs=1,
            callbacks=seen,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        trainer.fit(model, data)
        trainer.test(model, data, verbose=False)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return seen.train, seen.test, {k: v.item() for k, v in trainer.callback_metrics.items()}, weights


def test_every_word_is_read_once_and_in_order(two_processes, tmp_path):
    root = write_words(tmp_path)
    ranks = two_processes(run_on_a_rank, language, root, tmp_path)
    data = PennTreebank(root)
    data.setup()
    for stage, part in ((0, "train"), (1, "test")):
        streams = torch.cat([torch.cat([targets for _, targets in rank[stage]], dim=1) for rank in ranks])
        assert torch.equal(streams[streams != -100], data.tokens[part][1:])
    assert torch.equal(ranks[0][3], ranks[1][3])
    assert ranks[0][2]["test_perplexity"] == pytest.approx(ranks[1][2]["test_perplexity"])


def test_every_sample_is_seen_once(two_processes, tmp_path):
    root = write_multilabel(tmp_path, features=6)
    ranks = two_processes(run_on_a_rank, labels, root, tmp_path)
    data = MultiLabel("bibtex", root)
    data.setup()
    for stage, dataset in ((0, data.train_set), (1, data.test_set)):
        rows = torch.cat([torch.cat(batch, dim=1) for rank in ranks for batch in rank[stage]])
        whole = torch.cat([dataset.inputs, dataset.targets], dim=1)
        assert sorted(rows.tolist()) == sorted(whole.tolist())
    assert torch.equal(ranks[0][3], ranks[1][3])
    assert ranks[0][2]["test_f1"] == ranks[1][2]["test_f1"]


def resume_on_a_rank(rank, root, folder):
    def run(model, data, path=None, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's own, of many kinds in a process of its own
            strategy = DDPStrategy(cluster_environment=InGroup(rank))
            quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
            trainer = Trainer(
                accelerator="cpu",
                devices=2,
                strategy=strategy,
                max_epochs=1,
                enable_model_summary=False,
                **quiet,
                **options,
            )
            trainer.fit(model, data, ckpt_path=path)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def made():
        torch.manual_seed(1)
        model = LanguageModel(10, "lstm", hidden_size=8, dropout=0.0)
        return model, PennTreebank(root, seq_len=7, batch_size=3, eval_batch_size=2, download=False)

    save = SaveAt(2, folder / "kept.ckpt")
    return run(*made(), callbacks=save), run(*made(), save.path)


def test_each_rank_goes_on_in_its_own_text(two_processes, tmp_path):
    for whole, resumed in two_processes(resume_on_a_rank, write_words(tmp_path), tmp_path):
        assert torch.equal(whole, resumed)
