import copy
import math
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from spectral_param import (
    Band,
    Bounded,
    Fixed,
    Interval,
    Positive,
    SigmaMap,
    Unconstrained,
    clip_singular_values_,
    register_svd_parametrization,
    singular_values,
    svd_parametrizations,
)
from spectral_param.sigma.clipping import clipped

CENTERS = torch.tensor([3.0, 1.0, 0.25], dtype=torch.float64)
RADII = torch.tensor([1e-4, 0.5, 2.0], dtype=torch.float64)

MAPS = {
    "unconstrained": Unconstrained(),
    "positive": Positive(),
    "interval": Interval(-1.0, 3.0),
    "bounded": Bounded(2.5),
    "band": Band(0.01),
    "own bands": Band(RADII, CENTERS),
    "own centers": Band(0.1, center=CENTERS),
    "own intervals": Interval(-0.5, CENTERS),
    "own bounds": Bounded(CENTERS),
}
EDGED = {name: sigma_map for name, sigma_map in MAPS.items() if isinstance(sigma_map, (Interval, Band))}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]

each_map = pytest.mark.parametrize("sigma_map", MAPS.values(), ids=MAPS.keys())
each_edged_map = pytest.mark.parametrize("sigma_map", EDGED.values(), ids=EDGED.keys())


def level(value, dtype=torch.float64):
    return torch.as_tensor(value, dtype=dtype).expand(3).clone()


def gradient(sigma_map: SigmaMap, raw: torch.Tensor) -> torch.Tensor:
    raw = raw.clone().requires_grad_()
    return torch.autograd.grad(sigma_map(raw).sum(), raw)[0]


# ------------------------------------------------------------------------------------------------- there and back again


@each_map
@given(share=st.floats(1e-4, 1 - 1e-4))
def test_inverse_undoes_forward(sigma_map, share):
    low, high = level(sigma_map.low).clamp_min(-5), level(sigma_map.high).clamp_max(50)
    sigma = low + share * (high - low)
    assert torch.allclose(sigma_map(sigma_map.inverse(sigma)), sigma, rtol=1e-12, atol=1e-14)
    single = sigma.float()
    assert torch.allclose(sigma_map(sigma_map.inverse(single)), single, rtol=1e-6, atol=1e-6)


@each_map
def test_start(sigma_map):
    start = level(sigma_map.start)
    assert torch.allclose(sigma_map(sigma_map.inverse(start)), start, rtol=1e-14)
    half_width = (level(sigma_map.high) - start).clamp_max(1)
    assert (gradient(sigma_map, sigma_map.inverse(start)) >= 0.2 * half_width).all()


@pytest.mark.parametrize("center", [1.0, 0.7, -3.0])
def test_center_of_a_band_is_met_to_the_bit(center):
    assert Band(0.01, center)(torch.zeros(2)).tolist() == torch.full((2,), center).tolist()


@each_map
def test_derivatives(sigma_map):
    raw = torch.linspace(-3, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sigma_map, raw)
    assert torch.autograd.gradgradcheck(sigma_map, raw)


@each_map
def test_compiled(sigma_map):
    raw = torch.randn(3, dtype=torch.float64)
    assert torch.allclose(torch.compile(sigma_map, fullgraph=True, backend="eager")(raw), sigma_map(raw))


def test_formulas():
    raw = torch.linspace(-4, 4, 3, dtype=torch.float64)
    logistic = [1 / (1 + math.exp(-x)) for x in raw.tolist()]
    expected = {
        "positive": [math.log(1 + math.exp(x)) for x in raw.tolist()],
        "interval": [-1 + 4 * y for y in logistic],
        "bounded": [2.5 * y for y in logistic],
        "band": [2 * 0.01 * (y - 0.5) + 1 for y in logistic],
        "own bands": [
            2 * r * (y - 0.5) + c for y, r, c in zip(logistic, RADII.tolist(), CENTERS.tolist(), strict=True)
        ],
        "own intervals": [-0.5 + (c + 0.5) * y for y, c in zip(logistic, CENTERS.tolist(), strict=True)],
    }
    for name, values in expected.items():
        assert MAPS[name](raw).tolist() == pytest.approx(values, rel=1e-14)


@pytest.mark.parametrize(
    "sigma_map",
    [Band(1.0, center=0.0), Band(torch.full((4,), 1.0), 0.0), Interval(-1.0, 1.0), Interval(-torch.ones(4), 1)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_near_a_center_at_zero_sigma_is_exact_to_rounding(sigma_map, dtype):
    raw = torch.tensor([1e-8, -1e-6, 1e-3, 0.9], dtype=dtype)
    expected = [math.tanh(x / 2) for x in raw.tolist()]
    eps = torch.finfo(dtype).eps
    assert sigma_map(raw).tolist() == pytest.approx(expected, rel=4 * eps)
    assert sigma_map.inverse(sigma_map(raw)).tolist() == pytest.approx(raw.tolist(), rel=16 * eps)
    slopes = [(1 - y * y) / 2 for y in expected]
    assert gradient(sigma_map, raw).tolist() == pytest.approx(slopes, rel=8 * eps)


@pytest.mark.parametrize("sigma_map", [Band(0.1), Band(2.0, center=-1.0), Interval(-1.0, 3.0), Bounded(2.0)])
def test_float32_values_and_gradients_are_those_of_float64(sigma_map):
    raw = torch.linspace(-9, 9, 2001)
    low, high = sigma_map.low, sigma_map.high
    exact = [low + (high - low) / (1 + math.exp(-x)) for x in raw.tolist()]
    size = max(abs(low), abs(high))
    torch.testing.assert_close(sigma_map(raw).double(), torch.tensor(exact).double(), rtol=0, atol=2e-7 * size)
    slopes = [(high - low) / (2 + 2 * math.cosh(x)) for x in raw.tolist()]
    torch.testing.assert_close(gradient(sigma_map, raw), torch.tensor(slopes), rtol=1e-3, atol=0)


def test_a_bound_keeps_what_is_small():
    raw = torch.tensor([-30.0, -20.0, -5.0])
    expected = [2.5 / (1 + math.exp(-x)) for x in raw.tolist()]
    assert Bounded(2.5)(raw).tolist() == pytest.approx(expected, rel=1e-6)
    sigma = torch.tensor([2e-3, 0.1, 1.2])
    assert torch.allclose(Bounded(2.5)(Bounded(2.5).inverse(sigma)), sigma, rtol=1e-6, atol=0)


# ---------------------------------------------------------------------------------------------- the ends of the numbers


@pytest.mark.parametrize("dtype", DTYPES)
@each_map
def test_huge_raw_numbers_stay_in_range(sigma_map, dtype):
    largest = torch.finfo(dtype).max
    for raw in (-largest, -1e3, -50.0, -1e-30, 0.0, 50.0, 1e3, largest):
        sigma = sigma_map(level(raw, dtype))
        assert sigma.dtype == dtype
        assert torch.isfinite(sigma).all()
        assert (sigma >= level(sigma_map.low, dtype)).all()
        assert (sigma <= level(sigma_map.high, dtype)).all()
        assert torch.isfinite(gradient(sigma_map, level(raw, dtype))).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_never_vanishes(dtype):
    sigma = Positive()(torch.tensor([-1e4, -200.0, -80.0], dtype=dtype))
    assert (sigma > 0).all()
    assert torch.isfinite(1 / sigma).all()


def test_positive_keeps_what_is_small():
    sigma = torch.tensor([1e-30, 1e-9, 1e-3], dtype=torch.float64)
    assert torch.allclose(Positive()(Positive().inverse(sigma)), sigma, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_edged_map
def test_sigma_at_an_edge_starts_inside_and_alive(sigma_map, dtype):
    low, high = level(sigma_map.low, dtype), level(sigma_map.high, dtype)
    width = high - low
    for edge, inward in ((low, 1), (high, -1)):
        for beyond in (0.0, -1e-6, 1e-6, 1.0):
            raw = sigma_map.inverse(edge - inward * beyond * width)
            moved = (sigma_map(raw) - edge) * inward / width
            assert torch.allclose(moved, level(0.02, dtype), atol=1e-3)
            assert (gradient(sigma_map, raw) > 0.015 * width).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_map
def test_what_a_map_has_given_is_recovered_at_the_edges_too(sigma_map, dtype):
    raw = torch.cat([torch.linspace(-100, 100, 401, dtype=dtype), torch.tensor([-1e-8, 1e-30, 12.0], dtype=dtype)])
    for row in raw.unsqueeze(1).expand(-1, 3):
        sigma = sigma_map(row.contiguous())
        recovered = sigma_map.recover(sigma)
        assert torch.isfinite(recovered).all()
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(sigma_map(recovered), sigma, rtol=100 * eps, atol=2 * eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_edged_map
def test_what_lies_beyond_an_edge_is_recovered_inside(sigma_map, dtype):
    low, high = level(sigma_map.low, dtype), level(sigma_map.high, dtype)
    for beyond in (low - 0.01 * (high - low), high + 0.01 * (high - low)):
        assert torch.equal(sigma_map.recover(beyond), sigma_map.inverse(beyond))


def test_positive_starts_alive_where_sigma_is_not_positive():
    for sigma in (0.0, -1e-30, -7.0):
        raw = Positive().inverse(level(sigma))
        assert torch.allclose(Positive()(raw), level(0.02))
        assert (gradient(Positive(), raw) > 0.015).all()


# ----------------------------------------------------------------------------------------------------- bad levels


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, torch.tensor([0.1, 0.0]), torch.tensor([math.nan])])
def test_bad_widths(bad):
    for name, build in (("radius", Band), ("max", Bounded)):
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            build(bad)


@pytest.mark.parametrize("bad", ["0.1", None, True, torch.tensor([1, 2])])
def test_levels_that_are_no_numbers(bad):
    with pytest.raises(TypeError, match="^radius: expected a number or a floating tensor"):
        Band(bad)
    with pytest.raises(TypeError, match="^value: expected a number"):
        Fixed(bad)


def test_bad_intervals():
    for low, high in ((1.0, 1.0), (2.0, 1.0), (torch.tensor([0.0, 2.0]), 1.0)):
        with pytest.raises(ValueError, match="^low, high: expected low below high"):
            Interval(low, high)
    with pytest.raises(ValueError, match=r"^low, high: expected shapes that fit each other, got \(2,\) and \(3,\)"):
        Interval(torch.zeros(2), torch.ones(3))
    with pytest.raises(ValueError, match=r"^low: expected a number, or a tensor"):
        Interval(torch.zeros(2, 2, 2), 1.0)
    with pytest.raises(TypeError, match=r"^value: expected a number, got a tensor"):
        Fixed(torch.ones(2))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_levels_for_another_number_of_sigma(count):
    layer = nn.Linear(3, 5)
    with pytest.raises(ValueError, match=rf"^sigma: expected center of shape \(3,\), got \({count},\)"):
        register_svd_parametrization(layer, sigma=Band(0.1, center=torch.ones(count)))
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_levels_for_another_number_of_blocks():
    lstm = nn.LSTM(3, 3)
    expected = r"expected radius of shape \(3,\) or \(4, 3\), got \(3, 3\)"
    with pytest.raises(ValueError, match=expected):
        register_svd_parametrization(lstm, "weight_hh_l0", chunks=4, sigma=Band(torch.ones(3, 3)))
    with pytest.raises(ValueError, match=r"expected radius of shape \(3,\), got \(1, 3\)"):
        register_svd_parametrization(lstm, "weight_hh_l0", sigma=Band(torch.ones(1, 3)))


@pytest.mark.parametrize("method", ["forward", "inverse"])
def test_a_map_without_formulas(method):
    with pytest.raises(TypeError, match=f"SigmaMap: a σ map has to define {method}"):
        getattr(SigmaMap(), method)(torch.zeros(1))


# --------------------------------------------------------------------------------------- levels that move and are saved


def test_levels_are_copies():
    centers = torch.ones(3, requires_grad=True)
    band = Band(0.1, center=centers)
    with torch.no_grad():
        centers.fill_(7.0)
    assert band.center.tolist() == [1.0, 1.0, 1.0]
    assert not band.center.requires_grad


def test_levels_of_no_dimension_are_numbers():
    assert Band(torch.tensor(0.5), center=torch.tensor(2)).low == 1.5


def test_levels_in_half_precision_keep_their_bits():
    band = Band(torch.full((3,), 0.01), center=torch.full((3,), 1.1))
    before = band.state_dict()
    for changed in (band.half(), band.bfloat16(), band.float()):
        assert all(torch.equal(changed.state_dict()[name], before[name]) for name in ("radius", "center"))
    assert band.double().center.dtype == torch.float64
    assert band.to("meta").center.is_meta


def test_levels_on_the_meta_device():
    with torch.device("meta"):
        layer = nn.Linear(3, 3)
        band = Band(torch.ones(3), center=torch.ones(3))
    assert "3 values" in repr(band)
    register_svd_parametrization(layer, sigma=band)
    centers = CENTERS.float()
    real = register_svd_parametrization(nn.Linear(3, 3), sigma=Band(centers / 8, centers), init="orthogonal")
    layer.to_empty(device="cpu").load_state_dict(real.state_dict())
    assert torch.equal(layer.weight, real.weight)


def test_levels_in_checkpoints_and_copies():
    layer = register_svd_parametrization(nn.Linear(3, 3), sigma=Band(1.0, center=CENTERS), init="orthogonal")
    other = register_svd_parametrization(nn.Linear(3, 3), sigma=Band(1.0, center=torch.ones(3)), init="orthogonal")
    other.load_state_dict(layer.state_dict())
    for twin in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin.weight, layer.weight)
        twin.parametrizations.weight[0].sigma_map.center.zero_()
    assert layer.parametrizations.weight[0].sigma_map.center.tolist() == CENTERS.tolist()


def registered(sigma):
    return register_svd_parametrization(nn.Linear(3, 3), sigma=sigma, init="orthogonal")


def test_a_level_survives_to_empty():
    layer = registered(Band(torch.full((3,), 0.25), center=CENTERS))
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert (sigma_of(layer) - CENTERS).abs().max() <= 0.25 + 1e-6


@pytest.mark.parametrize("init", ["orthogonal", "weight"])
def test_a_level_lost_on_the_meta_device_is_an_error_that_names_the_remedy(init):
    band = Band(torch.full((3,), 0.25), center=CENTERS.float())
    with torch.device("meta"):
        layer = nn.Linear(3, 3)
    register_svd_parametrization(layer, sigma=copy.deepcopy(band).to("meta"), init=init)
    layer.to_empty(device="cpu")
    for use in (layer.reset_parameters, lambda: layer(torch.ones(1, 3))):
        with pytest.raises(ValueError, match=r"^sigma: radius and center of Band have no values since to_empty\(\)"):
            use()
    sigma_map = layer.parametrizations.weight[0].sigma_map
    sigma_map.radius.fill_(0.25)
    sigma_map.center.copy_(CENTERS)
    layer.reset_parameters()
    assert (sigma_of(layer) - CENTERS).abs().max() <= 0.25 + 1e-6


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.int64(1), np.float16(0.5), Fraction(1, 2)])
def test_numbers_of_other_libraries_are_numbers(number):
    for sigma_map in (Band(number, center=number), Interval(0, number), Bounded(number), Fixed(number)):
        assert sigma_map.high == float(number) * (2 if isinstance(sigma_map, Band) else 1)
        assert type(sigma_map.high) is float


def test_a_checkpoint_of_another_map_is_told_with_the_name_of_the_weight():
    trained = nn.Sequential(registered(Band(0.1)))
    for other in (Band(0.5), Unconstrained(), Positive(), Interval(-2.0, 3.0), Band(0.1, center=2.0)):
        model = nn.ModuleDict({"encoder": nn.Sequential(registered(other))})
        state = nn.ModuleDict({"encoder": trained}).state_dict()
        told = r"^encoder\.0\.weight: raw numbers of σ from Band\(radius=0\.1, center=1\.0\) are loaded into "
        identity = re.escape(model["encoder"][0].parametrizations.weight[0].sigma_map.identity)
        with pytest.warns(UserWarning, match=told + identity):
            model.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"^weight: raw numbers of σ from Fixed\(value=1\.0\)"):
        registered(Fixed(2.0)).load_state_dict(registered(Fixed()).state_dict())


def test_the_map_is_told_from_a_file(tmp_path):
    torch.save(registered(Band(0.1)).state_dict(), tmp_path / "state.pt")
    with pytest.warns(UserWarning, match="loaded into Band"):
        registered(Band(0.5)).load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@each_map
def test_a_checkpoint_of_the_same_map_or_without_its_name_loads_without_a_word(sigma_map):
    trained, same = registered(sigma_map), registered(sigma_map)
    assert same.load_state_dict(trained.state_dict()) == ([], [])
    other = registered(Band(0.5)) if not list(sigma_map.buffers()) else same
    other.load_state_dict(dict(trained.state_dict()))  # as before maps were named: keys and values alone
    assert torch.equal(raw_of(other), raw_of(trained))


def test_a_bound_is_the_interval_that_it_is():
    registered(Interval(0.0, 2.0)).load_state_dict(registered(Bounded(2.0)).state_dict())


# ----------------------------------------------------------------------------------------------------------- registered


def test_a_band_around_each_singular_value_that_a_weight_has():
    layer = nn.Linear(6, 4)
    before = layer.weight.detach().clone()
    spectrum = torch.linalg.svdvals(before)
    register_svd_parametrization(layer, sigma=Band(0.05, center=spectrum))
    assert torch.allclose(layer.weight, before, atol=1e-6)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
    for _ in range(30):
        optimizer.zero_grad()
        layer.weight.square().sum().backward()
        optimizer.step()
    after = singular_values(layer)
    assert (after < spectrum).all()
    assert ((after - spectrum).abs() <= 0.05 + 1e-6).all()


def test_a_band_around_each_singular_value_of_each_gate():
    gru = nn.GRU(5, 5)
    before = gru.weight_hh_l0.detach().clone()
    spectrum = torch.linalg.svdvals(before.reshape(3, 5, 5))
    register_svd_parametrization(gru, "weight_hh_l0", chunks=3, sigma=Band(0.01, center=spectrum))
    assert torch.allclose(gru.weight_hh_l0, before, atol=1e-6)


def test_orthogonal_start_takes_each_level():
    sigma = Interval(0.0, CENTERS)
    layer = register_svd_parametrization(nn.Linear(3, 5), sigma=sigma, init="orthogonal")
    assert torch.allclose(torch.linalg.svdvals(layer.weight).double(), CENTERS / 2, atol=1e-6)


def test_lipschitz_bound_of_a_large_weight_starts_inside_with_a_warning():
    layer = nn.Linear(5, 5)
    layer.weight.data *= 100
    with pytest.warns(UserWarning, match=r"Bounded\(max=1.0\): \d of 5 σ of the weight lie outside"):
        register_svd_parametrization(layer, sigma=Bounded(1.0))
    assert torch.linalg.svdvals(layer.weight).max() <= 0.981


# ------------------------------------------------------------------------------------------------------------- clipping


def sigma_of(layer):
    [(_, parametrization)] = svd_parametrizations(layer)
    return parametrization.sigma.detach()


def diagonal(values, sigma):
    layer = nn.Linear(len(values), len(values), bias=False)
    layer.weight.data = torch.diag(torch.tensor(values))
    return register_svd_parametrization(layer, sigma=sigma)


def test_clip_where_each_sigma_has_its_own_band():
    layer = diagonal([2.0, 1.0, 0.5], Band(0.4, center=torch.tensor([2.1, 1.1, 0.6])))
    clip_singular_values_(layer, 0.6, 1.9)
    assert torch.allclose(sigma_of(layer), torch.tensor([1.9, 1.0, 0.6]))


def test_clip_out_of_reach_of_one_sigma_changes_nothing():
    layer = diagonal([2.0, 1.0], Band(0.2, center=torch.tensor([2.0, 1.0])))
    before = sigma_of(layer)
    with pytest.raises(ValueError, match=r"^min, max: Band\(.*none of them in \[0.0, 1.5\] for some σ"):
        clip_singular_values_(layer, max=1.5)
    assert torch.equal(sigma_of(layer), before)


@pytest.mark.parametrize(
    ("sigma", "low", "high"),
    [(Band(0.1), 0.0, 0.9), (Band(0.1), 1.1, 2.0), (Positive(), 0.0, 0.0), (Bounded(1.0), 0.0, 0.0)],
)
def test_clip_to_an_edge_that_is_never_met(sigma, low, high):
    layer = diagonal([1.0, 0.98], sigma) if not isinstance(sigma, Bounded) else diagonal([0.5, 0.2], sigma)
    with pytest.raises(ValueError, match="none of them in"):
        clip_singular_values_(layer, low, high)


@pytest.mark.parametrize("low", [-3.0, 0.9])
def test_sigma_nearer_to_an_edge_than_it_can_be_held_are_not_reached(low):
    sigma_map = Interval(low, low + 0.2)
    for beyond, is_reached in ((1e-6, False), (1e-5, True)):  # a width of 0.2 has a margin of 2e-6
        assert sigma_map.reaches(low - 1, low + beyond) is is_reached
        assert sigma_map.reaches(low + 0.2 - beyond, low + 1) is is_reached


@pytest.mark.parametrize(
    "sigma_map",
    [Band(0.845, 1.032), Band(0.512, -0.38), Interval(0.187, 1.877), Band(torch.full((2,), 0.845), 1.032)],
)
def test_no_sigma_is_beyond_an_edge_by_rounding(sigma_map):
    sigma = sigma_map(torch.tensor([-100.0, 100.0]))
    low, high = (torch.as_tensor(edge, dtype=torch.float32).expand(2) for edge in (sigma_map.low, sigma_map.high))
    assert sigma[0] >= low[0]
    assert sigma[1] <= high[1]


def test_clip_keeps_signs_where_the_map_can():
    layer = diagonal([1.0, 1.0, 1.0], Interval(-2.0, 2.0))
    held = layer.parametrizations.weight
    with torch.no_grad():
        held.original1.copy_(held[0].sigma_map.inverse(torch.tensor([-1.5, 0.1, -0.1])))
    clip_singular_values_(layer, 0.5, 1.0)
    assert torch.allclose(sigma_of(layer), torch.tensor([-1.0, 0.5, -0.5]))


def test_clip_turns_a_sign_where_the_map_must():
    layer = diagonal([1.0, 1.0, 0.9], Interval(-0.1, 2.0))
    held = layer.parametrizations.weight
    with torch.no_grad():
        held.original1.copy_(held[0].sigma_map.inverse(torch.tensor([-0.05, 0.1, 0.9])))
    clip_singular_values_(layer, min=0.5)
    assert torch.allclose(sigma_of(layer), torch.tensor([0.5, 0.5, 0.9]))


@given(st.floats(0, 3), st.floats(0.01, 3), st.sampled_from(list(MAPS)))
def test_clip_puts_every_singular_value_in_range(low, width, name):
    sigma = copy.deepcopy(MAPS[name])
    layer = register_svd_parametrization(nn.Linear(3, 4), sigma=sigma, init="orthogonal")
    with torch.no_grad():
        layer.parametrizations.weight.original1.normal_(std=3)
    try:
        clip_singular_values_(layer, low, low + width)
    except ValueError:
        return
    found = sigma_of(layer).abs()
    assert (found >= low - 1e-5).all()
    assert (found <= low + width + 1e-5).all()


def raw_of(layer):
    return layer.parametrizations.weight.original1


@each_map
def test_clip_leaves_the_bits_of_what_lies_inside(sigma_map):
    raw = torch.randn(200, 3)
    sigma = sigma_map(raw).abs()
    low, high = sigma.quantile(0.3).item(), sigma.quantile(0.7).item()
    inside = (sigma >= low) & (sigma <= high)
    after = clipped(sigma_map, raw, low, high)
    assert 0 < inside.sum() < inside.numel()
    assert torch.equal(after[inside], raw[inside])
    assert (after[~inside] != raw[~inside]).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sigma_map", [Unconstrained(), Positive(), Band(0.5), Interval(-2.0, 3.0), Bounded(4.0)])
def test_clip_in_half_precision_leaves_no_sigma_outside(sigma_map, dtype):
    raw = torch.linspace(-6, 6, 999).to(dtype)
    for low, high in ((0.0, 0.8), (0.0, 1.0), (0.7, 1.2), (1.1, 3.0)):
        size = sigma_map(clipped(sigma_map, raw, low, high).float()).abs()
        assert size.min() >= low
        assert size.max() <= high
        assert size.max() > 0.95 * min(high, sigma_map.high)  # no further inside than rounding asks for


def test_clip_in_half_precision():
    layer = diagonal([2.0, 1.0, 0.5], Interval(0.0, torch.tensor([4.0, 4.0, 4.0]))).bfloat16()
    clip_singular_values_(layer, max=1.5)
    assert sigma_of(layer).max() <= 1.52


def _clip_shards(rank):
    mesh = init_device_mesh("cpu", (2,))
    layer = diagonal([3.0, 2.0, 1.0], Band(0.5, center=torch.tensor([3.1, 2.0, 1.0])))
    fully_shard(layer, mesh=mesh)
    clip_singular_values_(layer, 1.2, 2.8)
    assert isinstance(layer.parametrizations.weight.original1, DTensor)
    return sigma_of(layer).tolist()


def test_clip_shards_where_each_sigma_has_its_own_band(two_processes):
    for sigma in two_processes(_clip_shards):
        assert sigma == pytest.approx([2.8, 2.0, 1.2], abs=1e-6)
