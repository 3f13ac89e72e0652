import copy
import math

import pytest
import torch
import torch.nn.functional as F
from lightning import Callback, Trainer, seed_everything

from datamodules import PennTreebank
from lightning_modules import LanguageModel
from tests.small_data import write_words

SMALL = {"vocabulary_size": 10, "hidden_size": 8, "reflectors": 4, "dropout": 0.0}


def trainer(folder, **kwargs) -> Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return Trainer(accelerator="cpu", default_root_dir=folder, enable_model_summary=False, **quiet, **kwargs)


@pytest.fixture
def data(tmp_path) -> PennTreebank:
    return PennTreebank(write_words(tmp_path), seq_len=7, batch_size=3, eval_batch_size=2, download=False)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm", "spectral-rnn", "spectral-lstm"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_two_windows_are_one_long_window(cell, num_layers):
    model = LanguageModel(**SMALL, cell=cell, num_layers=num_layers)
    words, targets = torch.randint(10, (3, 11)), torch.randint(10, (3, 11))
    whole = model.loss(model(words), targets)
    first, state = model.advance(words[:, :4], None)
    second, _ = model.advance(words[:, 4:], state)
    parts = [model.loss(first, targets[:, :4]) * 4, model.loss(second, targets[:, 4:]) * 7]
    torch.testing.assert_close(sum(parts) / 11, whole)


@pytest.mark.parametrize("cell", ["lstm", "spectral-rnn"])
def test_steps_carry_the_state_and_cut_its_graph(cell, monkeypatch):
    monkeypatch.setattr(LanguageModel, "log", lambda *args, **kwargs: None)  # there is no trainer
    model = LanguageModel(**SMALL, cell=cell, learn_initial_state=True)
    words, targets = torch.randint(10, (3, 8)), torch.randint(10, (3, 8))
    halves = [(words[:, i : i + 4], targets[:, i : i + 4]) for i in (0, 4)]
    model.training_step(halves[0], 0).backward()
    model.zero_grad()
    model.training_step(halves[1], 1).backward()  # through the second window alone
    assert model.recurrent.initial_state.grad is None
    losses = [model.training_step(half, i) for i, half in enumerate(halves)]
    torch.testing.assert_close((losses[0] + losses[1]) / 2, model.loss(model(words), targets))
    # an epoch begins with a new text
    torch.testing.assert_close(model.training_step(halves[0], 0), losses[0])
    copy.deepcopy(model)


def test_validation_leaves_no_state_to_training(data, tmp_path):
    def trained(**kwargs) -> dict[str, torch.Tensor]:
        seed_everything(0, verbose=False)
        model = LanguageModel(**SMALL, cell="lstm")
        trainer(tmp_path, max_epochs=1, **kwargs).fit(model, data)
        return model.state_dict()

    often, never = trained(val_check_interval=2), trained(limit_val_batches=0, num_sanity_val_steps=0)
    for name in often:
        if not name.startswith("val_"):
            assert torch.equal(often[name], never[name]), name


def test_perplexity_is_of_the_whole_text(data, tmp_path):
    model = LanguageModel(**SMALL, cell="spectral-rnn")
    (logged,) = trainer(tmp_path).test(model, data, verbose=False)
    tokens = data.tokens["test"]
    half = (len(tokens) - 1) // 2
    model.eval()
    losses = [
        F.cross_entropy(model(stream[None, :-1])[0], stream[1:], reduction="sum")
        for stream in (tokens[: half + 1], tokens[half:])
    ]
    expected = (sum(losses) / (len(tokens) - 1)).item()
    assert logged["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert logged["test_perplexity"] == pytest.approx(math.exp(expected), rel=1e-5)
    answers = torch.cat(trainer(tmp_path).predict(model, data), dim=1)
    assert torch.equal(answers[0, :half], model(tokens[None, :half])[0].argmax(-1))


def test_a_window_without_targets_costs_nothing():
    model = LanguageModel(**SMALL)
    loss = model.loss(torch.zeros(2, 3, 10), torch.full((2, 3), -100))
    assert loss == 0


def test_tied_embedding(tmp_path, data):
    tied, free = (LanguageModel(**SMALL, tied=tied) for tied in (True, False))
    assert tied.head.weight is tied.embedding.weight
    assert sum(p.numel() for p in free.parameters()) - sum(p.numel() for p in tied.parameters()) == 80
    run = trainer(tmp_path, max_steps=2)
    run.fit(tied, data)
    run.save_checkpoint(tmp_path / "tied.ckpt")
    loaded = LanguageModel.load_from_checkpoint(tmp_path / "tied.ckpt")
    assert loaded.head.weight is loaded.embedding.weight
    words = torch.randint(10, (2, 6))
    assert torch.equal(loaded.eval()(words), tied.eval()(words))
    with pytest.raises(ValueError, match="embedding_size: expected 8 with a tied embedding, got 5"):
        LanguageModel(**SMALL, embedding_size=5, tied=True)
    assert LanguageModel(**SMALL, embedding_size=5)(words).shape == (2, 6, 10)


def test_parameters_without_embeddings():
    def count(**kwargs) -> int:
        model = LanguageModel(10_000, **kwargs)
        return sum(p.numel() for p in model.recurrent.parameters())

    n, m = 512, 16
    reflectors = 2 * (m * n - m * (m - 1) // 2)
    layer = reflectors + n + n * n + n
    assert count(hidden_size=n) == layer
    assert count(hidden_size=n, num_layers=2) == 2 * layer
    n = 128
    assert count(cell="lstm", hidden_size=n) == 4 * (2 * n * n + n)
    assert count(cell="lstm", hidden_size=n, num_layers=2) == 8 * (2 * n * n + n)


def test_dropout_in_training_alone():
    model = LanguageModel(**{**SMALL, "dropout": 0.5})
    words = torch.randint(10, (2, 6))
    assert not torch.equal(model(words), model(words))
    model.eval()
    assert torch.equal(model(words), model(words))


class SaveAt(Callback):
    """Saves after a step, within an epoch."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("cell", ["lstm", "spectral-rnn"])
@pytest.mark.parametrize("limits", [{}, {"limit_train_batches": 6}])
@pytest.mark.parametrize("step", [1, 6, 8])
def test_a_run_resumed_within_an_epoch_equals_an_uninterrupted_one(cell, limits, step, data, tmp_path):
    def model() -> LanguageModel:
        torch.manual_seed(1)
        return LanguageModel(**SMALL, cell=cell)

    whole, resumed = model(), model()
    trainer(tmp_path, max_epochs=2, callbacks=SaveAt(step, tmp_path / "kept.ckpt"), **limits).fit(whole, data)
    trainer(tmp_path, max_epochs=2, **limits).fit(resumed, data, ckpt_path=tmp_path / "kept.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_after_backward", "on_train_batch_end"])
def test_a_run_that_an_exception_ended_within_a_window_reads_it_again_from_its_start(hook, data, tmp_path):
    class Stops(Callback):
        def on_exception(self, trainer, *args):
            trainer.save_checkpoint(tmp_path / "kept.ckpt")

    def stop(self, trainer, *args):
        if trainer.fit_loop.epoch_loop.batch_idx == 5:
            raise RuntimeError("stopped")

    setattr(Stops, hook, stop)

    def model() -> LanguageModel:
        torch.manual_seed(1)
        return LanguageModel(**SMALL)

    whole, stopped, resumed = model(), model(), model()
    trainer(tmp_path, max_epochs=1).fit(whole, data)
    run = trainer(tmp_path, max_epochs=1, callbacks=Stops())
    with pytest.raises(RuntimeError, match="stopped"):
        run.fit(stopped, data)
    trainer(tmp_path, max_epochs=1).fit(resumed, data, ckpt_path=tmp_path / "kept.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_a_run_that_goes_on_with_other_streams_is_refused(data, tmp_path):
    trainer(tmp_path, max_epochs=1, callbacks=SaveAt(2, tmp_path / "kept.ckpt")).fit(LanguageModel(**SMALL), data)
    other = PennTreebank(tmp_path, seq_len=7, batch_size=2, eval_batch_size=2, download=False)
    with pytest.raises(ValueError, match="batch_size: expected 3 streams, as in the run that goes on, got 2"):
        trainer(tmp_path, max_epochs=1).fit(LanguageModel(**SMALL), other, ckpt_path=tmp_path / "kept.ckpt")


def test_a_state_that_was_loaded_is_saved_again_before_training_begins(data, tmp_path):
    class SaveAtStart(Callback):
        def on_fit_start(self, trainer, *args):
            trainer.save_checkpoint(tmp_path / "again.ckpt")

    trainer(tmp_path, max_epochs=1, callbacks=SaveAt(2, tmp_path / "kept.ckpt")).fit(LanguageModel(**SMALL), data)
    again = trainer(tmp_path, max_epochs=1, callbacks=SaveAtStart())
    again.fit(LanguageModel(**SMALL), data, ckpt_path=tmp_path / "kept.ckpt")
    [kept], [saved] = (torch.load(tmp_path / f"{name}.ckpt")["carried_states"] for name in ("kept", "again"))
    assert torch.equal(kept, saved)


def test_a_checkpoint_without_a_carried_state_still_loads(data, tmp_path):
    path = tmp_path / "kept.ckpt"
    trainer(tmp_path, max_epochs=1, callbacks=SaveAt(2, path)).fit(LanguageModel(**SMALL), data)
    checkpoint = torch.load(path)
    assert [part.shape for part in checkpoint.pop("carried_states")] == [(1, 1, 3, 8)]
    torch.save(checkpoint, path)
    trainer(tmp_path, max_epochs=2).fit(LanguageModel(**SMALL), data, ckpt_path=path)
