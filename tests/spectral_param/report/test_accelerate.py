import pytest
import torch
from torch import nn

from spectral_param import SpectralCap, spectral_norm
from spectral_param.report.recorder import SpectralRecorder

accelerate = pytest.importorskip("accelerate")


def loop(folder, steps, resume=None):
    """A loop as the documents have it; two gradients to a step."""
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    plain = accelerator.unwrap_model(model)
    seen = []
    recorder = SpectralRecorder(
        plain, dense="*", every_n_steps=2, log=lambda numbers, step: seen.append((step, numbers["spectral_margin"]))
    )
    SpectralCap(plain, max=0.5).attach(optimizer)
    accelerator.register_for_checkpointing(recorder)
    if resume is not None:
        accelerator.load_state(str(resume))
    for step in range(recorder.steps, steps):
        for part in range(2):
            with accelerator.accumulate(model):
                x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + part))
                loss = (model(x) - 1).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        recorder.step(loss)
        assert spectral_norm(plain[0]) <= 0.505
        assert spectral_norm(plain[2]) <= 0.505
    accelerator.save_state(str(folder))
    return plain, recorder, seen


@pytest.mark.filterwarnings("ignore:.*:FutureWarning")  # of accelerate about torch's own names
def test_a_loop_is_watched_capped_saved_and_taken_up_again(tmp_path):
    whole, recorder, seen = loop(tmp_path / "whole", 8)
    assert [step for step, _ in seen] == [0, 2, 4, 6, 8]
    loop(tmp_path / "half", 4)
    resumed, again, _ = loop(tmp_path / "end", 8, resume=tmp_path / "half")
    assert again.history.steps == recorder.history.steps
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)
    for name in ("0.weight", "2.weight"):
        assert torch.equal(again.history[name], recorder.history[name])
