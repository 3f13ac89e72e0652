import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization
from spectral_param.report.watch import Watch


def test_large_plain_weights_are_read_whole_rarely_and_glanced_at_in_between():
    model = nn.Sequential(register_svd_parametrization(nn.Linear(4, 4)), nn.Linear(500, 500, bias=False))
    watch = Watch(dense="1.*", statistics=["sigma_max", "stable_rank", "sigma_min"])
    truth = torch.linalg.svdvals(model[1].weight.detach())
    for reading in range(27):  # 25 for a width of 500
        readings, numbers = watch.take(model)
        assert ("1.weight" in readings) == (reading % 25 == 0) == ("sigma_min-1.weight" in numbers)
        assert ("spectral_margin" in numbers) == (reading % 25 == 0)
        assert "0.weight" in readings
        assert numbers["sigma_max-1.weight"] == pytest.approx(truth[0].item(), rel=0.01)
        stable_rank = truth.square().sum() / truth[0].square()
        assert numbers["stable_rank-1.weight"] == pytest.approx(stable_rank.item(), rel=0.02)


def test_small_plain_weights_are_read_whole_each_time_unless_told_otherwise():
    model = nn.Linear(5, 5)
    watch, rarely = Watch(dense="*"), Watch(dense="*", dense_every=3)
    assert all("weight" in watch.take(model)[0] for _ in range(4))
    assert ["weight" in rarely.take(model)[0] for _ in range(4)] == [True, False, False, True]


def test_a_glance_at_gates_names_each():
    model = nn.LSTM(4, 8)
    watch = Watch(dense="weight_hh*", dense_every=2, per_gate=True, statistics=["sigma_max"])
    whole, glanced = watch.take(model)[1], watch.take(model)[1]
    whole.pop("spectral_margin")
    assert glanced == pytest.approx(whole, rel=1e-6)
    assert len(glanced) == 4


@pytest.mark.parametrize(("width", "every"), [(256, 1), (300, 1), (500, 25), (1000, 50)])
def test_wide_weights_are_read_whole_more_rarely(width, every):
    model = nn.Linear(width, width, bias=False)
    assert Watch(dense="*")._interval(model) == every
