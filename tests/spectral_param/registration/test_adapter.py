"""Adapters on frozen bases: out, in, off, and what is refused."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from spectral_param import (
    Band,
    Bounded,
    Fixed,
    Interval,
    adapter_state_dict,
    load_adapter,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
    save_adapter,
    singular_values,
    svd,
    together,
    without_adapter,
)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Conv1d(6, 4, 1), nn.Linear(5, 5))


def registered(**settings):
    model = network().requires_grad_(False)
    register_all(model, base="frozen", **{"reflectors": 4, "rank": 3, **settings})
    return model


def moved(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "parametrizations" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def weights(model):
    return [model[0].weight, model[2].weight, model[3].weight]


def test_an_adapter_holds_the_trained_numbers_alone_and_brings_them_back():
    trained = moved(registered())
    adapter = adapter_state_dict(trained)
    assert sorted(adapter)[:4] == ["0.weight.base", "0.weight.sigma", "0.weight.u", "0.weight.v"]
    assert sum(t.numel() for name, t in adapter.items() if not name.endswith("base")) == sum(
        p.numel() for name, p in trained.named_parameters() if p.requires_grad and "bias" not in name
    )
    fresh = registered()
    assert load_adapter(fresh, adapter) is fresh
    for one, other in zip(weights(fresh), weights(trained), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    assert all(t.is_leaf and not t.requires_grad for t in adapter.values())


def test_two_adapters_are_swapped_on_one_base():
    first, second, model = moved(registered()), moved(registered()), registered()
    for trained in (first, second, first):
        load_adapter(model, adapter_state_dict(trained))
        torch.testing.assert_close(model[0].weight, trained[0].weight, atol=1e-6, rtol=1e-6)


def test_a_file_brings_the_same(tmp_path):
    pytest.importorskip("safetensors")
    trained, path = moved(registered()), tmp_path / "adapter.safetensors"
    save_adapter(trained, path)
    model = load_adapter(registered(), path)
    torch.testing.assert_close(model[0].weight, trained[0].weight, atol=1e-6, rtol=1e-6)
    with pytest.raises(ValueError, match="model: expected a weight registered with base='frozen'"):
        save_adapter(network(), path)


def test_off_it_is_the_base_to_the_bit_and_on_again_what_it_was():
    plain, model, x = network(), moved(registered()), torch.randn(5, 8)
    on = model[0](x)
    with without_adapter(model):
        assert torch.equal(model[0](x), plain[0](x))
        assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(plain), strict=True))
        with without_adapter(model):
            pass
        assert torch.equal(model[0](x), plain[0](x))
    assert torch.equal(model[0](x), on)


@pytest.mark.parametrize("keeping", [together, lambda model: parametrize.cached()], ids=["together", "cached"])
@pytest.mark.parametrize("on_first", [True, False])
def test_off_and_on_where_weights_are_kept(keeping, on_first):
    plain, model, x = network(), moved(registered()), torch.randn(5, 8)
    on, off = model[0](x), plain[0](x)
    with keeping(model):
        if on_first:
            assert torch.allclose(model[0](x), on)
        with without_adapter(model):
            assert torch.equal(model[0](x), off)
        assert torch.allclose(model[0](x), on)


def test_off_until_the_last_thread_has_left():
    plain, model, x = network(), moved(registered()), torch.randn(5, 8)
    on = model[0](x)
    entered, left = threading.Event(), threading.Event()

    def other():
        with without_adapter(model):
            entered.set()
            left.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with without_adapter(model):
        left.set()
        thread.join()
        assert torch.equal(model[0](x), plain[0](x))
    assert torch.equal(model[0](x), on)


def test_off_its_spectrum_is_that_of_the_base():
    plain, model = network(), moved(registered())
    on = singular_values(model[0])
    with without_adapter(model):
        expected = torch.linalg.svdvals(plain[0].weight)
        torch.testing.assert_close(singular_values(model[0]), expected, atol=1e-6, rtol=1e-6)
        u, s, vh = svd(model[0])
        torch.testing.assert_close((u * s) @ vh, plain[0].weight, atol=1e-6, rtol=1e-6)
    assert torch.equal(singular_values(model[0]), on)


def test_a_copy_of_what_is_off_is_on():
    model, x = moved(registered()), torch.randn(5, 8)
    with without_adapter(model):
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for twin in copies:
        assert torch.equal(twin[0](x), model[0](x))


def refused(adapter, message, error=ValueError):
    model = registered()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=message):
        load_adapter(model, adapter)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_what_does_not_fit_is_refused_by_name_and_changes_nothing():
    adapter = adapter_state_dict(moved(registered()))
    refused({k: v for k, v in adapter.items() if k != "2.weight.u"}, "none for 2.weight.u")
    refused({**adapter, "9.weight.u": torch.ones(2)}, "alone, got 9.weight.u")
    refused({**adapter, "0.weight.v": torch.ones(8, 2)}, r"0.weight.v of shape \(8, 4\), got \(8, 2\)")
    refused({**adapter, "3.weight.base": 2 * adapter["3.weight.base"]}, "same base.*3.weight.base")
    refused({**adapter, "3.weight.base": torch.full((2,), torch.nan)}, "finite numbers")
    refused({**adapter, "0.weight.u": torch.full((6, 4), torch.inf)}, "finite numbers for 0.weight.u")
    refused({**adapter, "0.weight.u": torch.full((6, 4), 1e200, dtype=torch.float64)}, "finite numbers for 0.weight.u")
    refused(
        {**adapter, "0.weight.u": torch.ones(6, 4, dtype=torch.int64)}, "floating numbers for 0.weight.u", TypeError
    )
    refused({**adapter, "0.weight.u": 1.0}, "floating numbers for 0.weight.u, got float", TypeError)
    refused(7, "adapter: expected a mapping of tensors or a path, got int", TypeError)
    with pytest.raises(ValueError, match="model: expected a weight registered with base='frozen'"):
        load_adapter(nn.Linear(2, 2), adapter)


def test_only_frozen_bases_have_one():
    model = network()
    register_svd_parametrization(model[0])
    assert adapter_state_dict(model) == {}


def test_another_sigma_map_means_the_same_or_is_refused():
    trained = moved(registered())
    adapter = adapter_state_dict(trained)
    other = load_adapter(registered(sigma=Bounded(4.0)), adapter)
    torch.testing.assert_close(other[0].weight, trained[0].weight, atol=1e-4, rtol=1e-4)
    with pytest.warns(UserWarning, match="outside the range"):
        narrow = registered(sigma=Bounded(0.01))
    with pytest.raises(ValueError, match="within the range of Bounded"):
        load_adapter(narrow, adapter)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sigma", [Band(0.1), Band(0.01), Bounded(3.0), Interval(-1.0, 1.0), Band(0.1, 100.0)])
@pytest.mark.filterwarnings("ignore:.*lie outside its range")
def test_sigma_at_an_edge_comes_back(sigma, dtype):
    layer = nn.Linear(8, 8, dtype=dtype).requires_grad_(False)
    register_svd_parametrization(layer, base="frozen", reflectors=2, rank=4, sigma=sigma)
    raw = layer.parametrizations.weight[0].raw_sigma
    with torch.no_grad():
        raw.copy_(torch.tensor([12.0, 50.0, -50.0, 0.3]))
    before, weight = svd(layer)[1].detach().clone(), layer.weight.detach().clone()
    adapter = adapter_state_dict(layer)
    load_adapter(layer, adapter)
    torch.testing.assert_close(svd(layer)[1], before, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(layer.weight, weight)
    assert adapter["weight.sigma"].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize("sigma", [Band(0.1), Band(0.01, 1.09), Interval(0.3, 1.1), Interval(0.9, 1.3)])
@pytest.mark.parametrize("of", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:.*lie outside its range")
def test_sigma_at_an_edge_comes_into_another_dtype(sigma, of):
    for to in (torch.float32, torch.float64):
        one, other = (nn.Linear(8, 8).requires_grad_(False) for _ in range(2))
        other.load_state_dict(one.state_dict())
        for layer, dtype in ((one, torch.float32), (other, to)):
            register_svd_parametrization(layer.to(dtype), base="frozen", reflectors=2, rank=3, sigma=sigma)
        with torch.no_grad():
            one.parametrizations.weight[0].raw_sigma.copy_(torch.tensor([60.0, 0.5, -60.0]))
        adapter = adapter_state_dict(one)
        adapter["weight.sigma"] = adapter["weight.sigma"].to(
            of
        )  # bfloat16 as older versions wrote those of half models
        load_adapter(other, adapter)
        want = torch.tensor([sigma.high, sigma.low], dtype=to)
        got = other.parametrizations.weight[0].leading_sigma[[0, 2]].detach()
        torch.testing.assert_close(got, want, rtol=4e-3 if of == torch.bfloat16 else 2e-7, atol=0)


@pytest.mark.filterwarnings("ignore:.*lie outside its range")
def test_fixed_sigma_are_of_the_adapter_too():
    def fixed(value, rank):
        layer = nn.Linear(8, 8).requires_grad_(False)
        nn.init.eye_(layer.weight)
        return register_svd_parametrization(layer, base="frozen", reflectors=2, rank=rank, sigma=Fixed(value))

    adapter = adapter_state_dict(fixed(1.0, 3))
    with pytest.raises(ValueError, match=r"weight\.sigma"):
        load_adapter(fixed(2.0, 3), adapter)
    with pytest.raises(ValueError, match=r"expected weight\.sigma of shape \(4,\)"):
        load_adapter(fixed(1.0, 4), adapter)
    load_adapter(fixed(1.0, 3), adapter)
    del adapter["weight.sigma"]  # as in files of older versions
    load_adapter(fixed(1.0, 3), adapter)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_base_in_half_precision_takes_an_adapter_of_full(dtype):
    trained, half = moved(registered()), registered()
    load_adapter(half.to(dtype), adapter_state_dict(trained))
    for one, other in zip(weights(half), weights(trained), strict=True):
        torch.testing.assert_close(one.float(), other, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("rank", [0, 3])
def test_another_base_is_refused_also_where_its_leading_sigma_are_the_same(rank):
    first, second = (nn.Linear(8, 6).requires_grad_(False) for _ in range(2))
    with torch.no_grad():
        second.weight.copy_(first.weight.flip(0))
    for layer in (first, second):
        register_svd_parametrization(layer, base="frozen", reflectors=4, rank=rank)
    with pytest.raises(ValueError, match="same base"):
        load_adapter(second, adapter_state_dict(first))


def test_a_file_without_what_else_is_trained_says_so(tmp_path):
    pytest.importorskip("safetensors")
    layer = register_svd_parametrization(nn.Linear(8, 6), base="frozen")
    with pytest.warns(UserWarning, match="^bias: trained, and not in the file"):
        save_adapter(layer, tmp_path / "adapter.safetensors")


def test_nothing_is_folded_while_it_is_off():
    layer = moved(register_svd_parametrization(nn.Linear(8, 6), base="frozen"))
    weight = layer.weight.detach()
    with without_adapter(layer), pytest.raises(ValueError, match="without its adapter"):
        remove_svd_parametrization(layer)
    assert torch.equal(layer.weight, weight)


def test_paths_of_no_adapter_are_named(tmp_path):
    pytest.importorskip("safetensors")
    layer = registered()
    torch.save(layer.state_dict(), tmp_path / "model.pt")
    expected = "^adapter: expected a file that save_adapter wrote, "
    for path in (tmp_path / "model.pt", tmp_path):
        with pytest.raises(ValueError, match=f"{expected}got '{path}': "):
            load_adapter(layer, path)
    with pytest.raises(FileNotFoundError, match=f"{expected}found none at "):
        load_adapter(layer, str(tmp_path / "absent.safetensors"))
    for path in (tmp_path / "absent" / "a.safetensors", tmp_path, ""):
        with pytest.raises(ValueError, match="^path: expected a file in a folder that is there, got "):
            save_adapter(layer, path)
