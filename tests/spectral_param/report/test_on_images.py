"""Convolutions that are watched and listed as maps of images."""

import pytest
import torch
from torch import nn

from spectral_param import (
    Fixed,
    image_sizes,
    register_svd_parametrization,
    singular_values,
    spectral_norm,
    spectral_table,
)
from spectral_param.report.recorder import SpectralRecorder
from spectral_param.report.run import Run
from spectral_param.report.watch import KEPT, Watch, to_keep


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    options = {"padding": 1, "padding_mode": "circular"}
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, **options), nn.ReLU(), nn.Conv2d(4, 4, 3, **options), nn.Flatten(), nn.Linear(256, 2)
    )
    register_svd_parametrization(model[2], sigma=Fixed(), init="orthogonal")
    return model


def test_the_table_has_the_numbers_of_the_operator(model: nn.Module) -> None:
    rows = {row["weight"]: row for row in spectral_table(model, dense=True, operator={"[02].weight": (8, 8)})}
    assert [row["operator"] for row in rows.values()] == ["8×8", "8×8", ""]
    for name, layer in (("0.weight", model[0]), ("2.weight", model[2])):
        sigma = singular_values(layer, operator=(8, 8))
        assert rows[name]["max"] == pytest.approx(sigma[0].item(), rel=1e-5)
        assert rows[name]["min"] == pytest.approx(sigma[-1].item(), abs=1e-5)
    assert rows["2.weight"]["max"] > 1.2
    assert rows["4.weight"]["max"] == pytest.approx(spectral_norm(model[4]).item(), rel=1e-5)
    assert "8×8" in str(spectral_table(model, operator=(8, 8)))


def test_upper_bounds_are_marked(model: nn.Module) -> None:
    table = spectral_table(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1)), dense=True, operator=(16, 16))
    assert table[0]["operator"] == "≤ 16×16"
    assert "operator" not in spectral_table(model)[0]


def test_readings_and_glances_agree(model: nn.Module) -> None:
    images = image_sizes(model, torch.randn(1, 1, 8, 8))
    watch = Watch(dense="*", operator=images, dense_every=2, statistics=["sigma_max", "stable_rank"])
    readings, numbers = watch.take(model)
    glanced, leading = watch.take(model)
    assert set(readings) == {"0.weight", "2.weight", "4.weight"}
    assert not set(glanced)
    assert readings["2.weight"].shape == (1, 256)
    for name, number in numbers.items():
        if name != "spectral_margin":
            assert leading[name] == pytest.approx(number, rel=0.03)


def test_of_many_values_the_ends_are_kept() -> None:
    conv = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    watch = Watch(dense="*", operator=(16, 16), statistics=["effective_rank", "stable_rank"])
    readings, numbers = watch.take(conv)
    described = watch.describe(conv)
    reading = to_keep(readings, described)["weight"]
    sigma = singular_values(conv, operator=(16, 16))
    assert reading.shape == (1, KEPT)
    assert described["weight"]["values"] == sigma.numel()
    assert numbers["stable_rank-weight"] == pytest.approx(sigma.square().sum().item() / sigma[0].item() ** 2, rel=1e-4)
    share = sigma / sigma.sum()
    assert numbers["effective_rank-weight"] == pytest.approx(torch.special.entr(share).sum().exp().item(), rel=1e-4)
    assert reading[0, 0].item() == pytest.approx(sigma[0].item(), rel=1e-5)
    assert reading[0, -1].item() == pytest.approx(sigma[-1].item(), abs=1e-5)


def test_a_page_estimates_the_rank_of_all_values_from_those_kept() -> None:
    conv, logged = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular"), {}
    recorder = SpectralRecorder(conv, dense="*", operator=(16, 16), log=lambda numbers, _: logged.update(numbers))
    recorder.step()
    run = Run()
    run.add_state(recorder.state_dict())
    assert run.weights["weight"]["effective_rank"] == pytest.approx(logged["effective_rank-weight"], rel=0.02)


def test_a_recorder_writes_a_page_that_says_so(model: nn.Module, tmp_path: object) -> None:
    recorder = SpectralRecorder(model, dense="0.*", operator=(8, 8), every_n_steps=1)
    recorder.step(1.0)
    page = recorder.write_report(tmp_path).read_text()
    assert "plain, on images 8×8" in page


def test_images_of_no_convolution_are_refused(model: nn.Module) -> None:
    for take in (
        lambda: spectral_table(model, operator={"9.*": (8, 8)}),
        lambda: SpectralRecorder(model, operator={"9.*": (8, 8)}),
    ):
        with pytest.raises(ValueError, match="operator: expected patterns of convolutions' weights, '9"):
            take()
