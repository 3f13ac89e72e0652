import pytest
import torch
from lightning import Trainer, seed_everything
from torch import nn

from datamodules import AddingProblem, PixelMNIST
from lightning_modules import SequenceClassifier, SequenceRegressor
from tests.lightning_modules.tasks.test_language_model import SaveAt

SMALL = {"hidden_size": 8, "reflectors": 4}


def trainer(folder, **kwargs) -> Trainer:
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **kwargs,
    )


@pytest.fixture(params=["rnn", "lstm", "spectral-rnn", "urnn"])
def cell(request) -> str:
    return request.param


@pytest.fixture(params=[SequenceRegressor, SequenceClassifier])
def task(request, cell, small_mnist):
    """A new model and its data."""

    def make(**kwargs):
        seed_everything(1, verbose=False)
        if request.param is SequenceRegressor:
            data = AddingProblem(6, train_size=40, val_size=10, test_size=10, batch_size=8)
            return SequenceRegressor(2, 1, cell, **SMALL, **kwargs), data
        data = PixelMNIST(small_mnist, 28, val_size=20, batch_size=16)
        return SequenceClassifier(28, 10, cell, **SMALL, **kwargs), data

    return make


def test_checkpoint_loads_without_arguments(task, tmp_path):
    model, data = task(learn_initial_state=True, decay=0.9)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(model, data)
    run.save_checkpoint(tmp_path / "one.ckpt")
    loaded = type(model).load_from_checkpoint(tmp_path / "one.ckpt")
    assert loaded.hparams == model.hparams
    inputs, _ = next(iter(data.val_dataloader()))
    assert torch.equal(loaded(inputs), model(inputs))


def test_resumed_run_equals_an_uninterrupted_one(task, tmp_path):
    whole, data = task(decay=0.5)
    trainer(tmp_path, max_epochs=3).fit(whole, data)

    half, data = task(decay=0.5)
    run = trainer(tmp_path, max_epochs=1)
    run.fit(half, data)
    run.save_checkpoint(tmp_path / "half.ckpt")
    resumed, data = task(decay=0.5)
    trainer(tmp_path, max_epochs=3).fit(resumed, data, ckpt_path=tmp_path / "half.ckpt")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


@pytest.mark.parametrize("step", [2, 3, 5, 6])
def test_a_run_resumed_within_an_epoch_equals_an_uninterrupted_one(task, step, tmp_path):
    whole, data = task()
    save = SaveAt(step, tmp_path / "kept.ckpt")
    trainer(tmp_path, max_epochs=3, limit_train_batches=3, callbacks=save).fit(whole, data)
    resumed, data = task()
    data.num_workers = step % 2
    trainer(tmp_path, max_epochs=3, limit_train_batches=3).fit(resumed, data, ckpt_path=save.path)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    assert len(list(data.train_dataloader())) >= 3  # read by hand an epoch is whole


def test_learning_rate_decays_by_epoch(task, tmp_path):
    model, data = task(learning_rate=0.1, decay=0.5)
    run = trainer(tmp_path, max_epochs=2)
    run.fit(model, data)
    assert run.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**2)


def test_evaluation_and_predictions_agree(task, tmp_path):
    model, data = task()
    run = trainer(tmp_path)
    (logged,) = run.test(model, data, verbose=False)
    answers = torch.cat(run.predict(model, data))
    inputs, targets = (torch.cat(parts) for parts in zip(*data.test_dataloader(), strict=True))
    output = model.eval()(inputs)
    if isinstance(model, SequenceRegressor):
        assert torch.equal(answers, output)
        error = ((output - targets) ** 2).mean().item()
        assert logged == pytest.approx({"test_loss": error, "test_mse": error, "baseline_mse": 1 / 6})
    else:
        assert torch.equal(answers, output.argmax(1))
        assert logged["test_accuracy"] == pytest.approx((answers == targets).float().mean().item())
        loss = nn.functional.cross_entropy(output, targets).item()
        assert logged["test_loss"] == pytest.approx(loss, rel=1e-5)


def test_answer_depends_on_the_whole_sequence(task):
    model, _ = task()
    inputs = torch.rand_like(model.example_input_array).requires_grad_()
    model(inputs).sum().backward()
    assert (inputs.grad.abs().sum(-1) > 0).all()


def test_gradients_reach_every_parameter(task):
    model, _ = task(learn_initial_state=True)
    model(torch.rand_like(model.example_input_array)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad != 0).any(), name
