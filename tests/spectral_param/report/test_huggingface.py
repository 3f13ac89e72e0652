"""With a stand-in for the Trainer, and with a tiny GPT-2 where transformers is installed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from spectral_param import singular_values
from spectral_param.report.huggingface import SpectralTrainerCallback


def train(callback, folder, model, optimizer, steps, begin=0):
    """The order in which the Trainer calls."""
    args = SimpleNamespace(output_dir=str(folder))
    state = SimpleNamespace(global_step=begin, log_history=[], is_world_process_zero=True)
    callback.on_train_begin(args, state, None, model=model, optimizer=optimizer)
    for step in range(begin, begin + steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        x = torch.randn(4, 6)
        (model(x) - 3 * x).square().mean().backward()
        optimizer.step()
        state.global_step += 1
        callback.on_step_end(args, state, None, model=model)
        assert singular_values(model).max() <= 0.505
    callback.on_log(args, state, None, logs={"loss": 1.0})
    (folder / f"checkpoint-{state.global_step}").mkdir()
    callback.on_save(args, state, None)
    callback.on_train_end(args, state, None)
    return state


def test_a_run_is_watched_capped_saved_and_taken_up_again(tmp_path):
    def start():
        torch.manual_seed(0)
        model = nn.Linear(6, 6)
        return model, torch.optim.AdamW(model.parameters(), lr=0.05)

    model, optimizer = start()
    callback = SpectralTrainerCallback({"max": 0.5}, dense="*", every_n_steps=5)
    state = train(callback, tmp_path, model, optimizer, 20)
    assert [entry["step"] for entry in state.log_history] == [0, 5, 10, 15, 20]
    assert (tmp_path / "spectral_report.html").is_file()

    half, optimizer = start()
    (tmp_path / "halves").mkdir()
    train(SpectralTrainerCallback({"max": 0.5}, dense="*", every_n_steps=5), tmp_path / "halves", half, optimizer, 10)
    again = SpectralTrainerCallback({"max": 0.5}, dense="*", every_n_steps=5)
    train(again, tmp_path / "halves", half, optimizer, 10, begin=10)
    assert torch.equal(half.weight, model.weight)
    assert again.recorder.history.steps == callback.recorder.history.steps
    torch.testing.assert_close(again.recorder.history["weight"], callback.recorder.history["weight"])


@pytest.mark.filterwarnings("ignore")
def test_a_tiny_gpt2_is_watched_capped_and_resumed_bit_by_bit(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    tokens = torch.randint(0, 50, (32, 12), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in tokens]

    def trainer(folder):
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2)
        options = {"per_device_train_batch_size": 8, "max_steps": 8, "save_steps": 4, "learning_rate": 0.05}
        args = transformers.TrainingArguments(str(folder), report_to=[], use_cpu=True, disable_tqdm=True, **options)
        callback = SpectralTrainerCallback({"max": 1.0, "dense": "*.h.*"}, dense="*.h.*", every_n_steps=2)
        model = transformers.GPT2LMHeadModel(config)
        return transformers.Trainer(model, args, train_dataset=data, callbacks=[callback]), model, callback

    run, model, callback = trainer(tmp_path)
    run.train()
    assert callback.recorder.history.steps == [0, 2, 4, 6, 8]
    assert [said["step"] for said in run.state.log_history if "spectral_margin" in said] == [0, 2, 4, 6, 8]
    norms = [torch.linalg.svdvals(p.detach())[0] for n, p in model.named_parameters() if ".h." in n and p.dim() == 2]
    assert 0.99 < max(norms) <= 1.01
    again, resumed, callback = trainer(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for one, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert callback.recorder.history.steps == [0, 2, 4, 6, 8]
    assert [said["step"] for said in again.state.log_history if "spectral_margin" in said] == [0, 2, 4, 6, 8]
    moved, _, callback = trainer(tmp_path / "elsewhere")  # where no history is
    moved.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert callback.recorder.history.steps == [4, 6, 8]
