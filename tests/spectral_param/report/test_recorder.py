import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization, singular_values
from spectral_param.callbacks import SpectralMonitor
from spectral_param.report.recorder import SpectralRecorder
from spectral_param.report.run import Run
from tests.spectral_param.callbacks.small_runs import Regression, trainer, vectors


def trained(model, recorder, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss)


def test_the_history_of_a_loop_is_that_of_the_lightning_monitor(tmp_path):
    monitor = SpectralMonitor(every_n_steps=3, dense="second.*")
    trainer(tmp_path, monitor).fit(Regression(), vectors(8))
    model = Regression()
    recorder = SpectralRecorder(model, dense="second.*", every_n_steps=3)
    trained(model, recorder, torch.optim.Adam(model.parameters(), lr=0.1), vectors(8))
    assert recorder.write_report(tmp_path).name == "spectral_report.html"
    assert recorder.history.steps == monitor.history.steps
    assert recorder.described == monitor.described
    for name in monitor.history.names:
        torch.testing.assert_close(recorder.history[name], monitor.history[name], equal_nan=True)
    assert list(recorder.figures()) == list(monitor.figures())
    assert "second.weight" in (tmp_path / "spectral_report.html").read_text()


def test_numbers_are_logged_with_their_step():
    logged = []
    model = nn.Sequential(register_svd_parametrization(nn.Linear(3, 3)), nn.Linear(3, 3))
    recorder = SpectralRecorder(model, every_n_steps=2, log=lambda *said: logged.append(said), statistics=["sigma_max"])
    for _ in range(4):
        recorder.step()
    assert [step for _, step in logged] == [0, 2, 4]
    assert set(logged[0][0]) == {"sigma_max-0.weight", "spectral_margin"}


def test_a_weight_that_changes_its_size_stays_in_the_report(tmp_path):
    model = nn.Sequential(register_svd_parametrization(nn.Linear(6, 6)))
    recorder = SpectralRecorder(model, every_n_steps=1)
    recorder.step()
    model[0] = register_svd_parametrization(nn.Linear(6, 4))
    recorder.step()
    recorder.step()
    assert recorder.history["0.weight"][-1].isnan().tolist() == [False] * 4 + [True] * 2
    assert recorder.state_dict()["history"]["values"]["0.weight"].shape[1] == 6
    report = recorder.write_report(tmp_path).read_text()
    assert f"{singular_values(model[0]).max():.3f}" in report


@pytest.mark.parametrize("place", [0, 3])
def test_sigma_that_is_no_number_is_told_whatever_its_place(place):
    model = nn.Sequential(register_svd_parametrization(nn.Linear(4, 4)))
    recorder = SpectralRecorder(model, every_n_steps=1)
    recorder.step()
    with torch.no_grad():
        model[0].parametrizations.weight[0].raw_sigma[place] = torch.nan
    recorder.step()
    recorder.step()
    run = Run()
    run.add_state(recorder.state_dict())
    assert math.isnan(run.margins["0.weight"][1][-1])
    assert math.isnan(run.weights["0.weight"]["sigma_max"])


def test_a_history_is_taken_up_again():
    def run(recorder, model, optimizer, batches):
        trained(model, recorder, optimizer, batches)
        return recorder

    def start():
        model = Regression()
        return SpectralRecorder(model, dense="*", every_n_steps=2), model, torch.optim.SGD(model.parameters(), lr=0.1)

    batches = list(vectors(8))
    whole, model, optimizer = start()
    run(whole, model, optimizer, batches)
    first, model, optimizer = start()
    run(first, model, optimizer, batches[:4])
    again = SpectralRecorder(model, dense="*", every_n_steps=2)
    again.load_state_dict(first.state_dict())
    run(again, model, optimizer, batches[4:])
    assert again.history.steps == whole.history.steps == [0, 2, 4, 6]
    for name in whole.history.names:
        torch.testing.assert_close(again.history[name], whole.history[name])


def test_a_run_that_goes_on_logs_each_step_once():
    logged = []
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def recorder(**options):
        return SpectralRecorder(model, every_n_steps=2, log=lambda _, step: logged.append(step), **options)

    batches = list(vectors(8))
    first = recorder()
    trained(model, first, optimizer, batches[:4])
    again = recorder()
    again.load_state_dict(first.state_dict())
    trained(model, again, optimizer, batches[4:])
    assert logged == [0, 2, 4, 6, 8]
    logged.clear()
    alone = recorder(steps=4)  # without the history of before
    trained(model, alone, optimizer, batches[4:])
    assert (logged, alone.history.steps) == ([4, 6, 8], [4, 6])


def test_nothing_to_watch_and_bad_intervals_are_errors():
    with pytest.raises(ValueError, match="weights, dense: expected patterns of weights, they match none"):
        SpectralRecorder(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="every_n_steps: expected a positive number, got 0"):
        SpectralRecorder(nn.Linear(2, 2), dense="*", every_n_steps=0)
    with pytest.raises(ValueError, match="steps: expected how many were taken, got -1"):
        SpectralRecorder(nn.Linear(2, 2), dense="*", steps=-1)


def test_it_needs_neither_lightning_nor_matplotlib():
    code = (
        "import sys; import spectral_param.report.recorder, spectral_param.report.checkpoints.command; "
        "assert not {'lightning', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
