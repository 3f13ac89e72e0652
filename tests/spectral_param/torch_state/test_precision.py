"""W and all readings are in full precision, whatever the user allows products to be computed in."""

import threading

import pytest
import torch
from torch import nn

from spectral_param import Band, inverse, register_svd_parametrization, spectral_margin, together
from spectral_param.nn import SVDLinear
from spectral_param.torch_state.precision import full_precision
from tests.versions import a_precision_each


@pytest.fixture(params=["high", "medium", pytest.param("mkldnn", marks=a_precision_each), "autocast"])
def coarse(request):
    """A mode in which products of float32 may be coarser."""
    if request.param == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            yield
        return
    if request.param == "mkldnn":
        before, torch.backends.mkldnn.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision, "bf16"
        yield
        torch.backends.mkldnn.matmul.fp32_precision = before
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


def layers(size=128, **kwargs):
    torch.manual_seed(0)
    return register_svd_parametrization(nn.Linear(size, size), sigma=Band(0.01), init="orthogonal", **kwargs)


@pytest.mark.parametrize("kwargs", [{}, {"reflectors": 8}, {"train": "sigma"}, {"chunks": 2}])
def test_a_weight_has_full_precision(coarse, kwargs):
    layer = layers(**kwargs)
    sigma = torch.linalg.svdvals(layer.weight.detach().double().view(kwargs.get("chunks", 1), -1, 128))
    torch.testing.assert_close(sigma, torch.ones_like(sigma), rtol=0, atol=5e-6)


@pytest.mark.parametrize("kwargs", [{}, {"reflectors": 8}, {"chunks": 2}])
def test_gradients_of_reflectors_have_full_precision(coarse, kwargs):
    layer, cotangent = layers(**kwargs), torch.randn(128, 128)
    trained = [p for p in layer.parametrizations.parameters() if p.requires_grad]
    grads = torch.autograd.grad(layer.weight, trained, cotangent)
    with full_precision("cpu"):
        want = torch.autograd.grad(layer.weight, trained, cotangent)
    torch.testing.assert_close(grads, want, rtol=0, atol=1e-6)


def test_readings_have_full_precision(coarse):
    layer = layers()
    weight = layer.weight.detach().double()
    assert (torch.linalg.svdvals(weight) - 1).abs().max() - spectral_margin(layer).item() <= 5e-6
    torch.testing.assert_close(inverse(layer).double() @ weight, torch.eye(128, dtype=torch.float64), rtol=0, atol=1e-5)


def test_weights_built_together_have_full_precision(coarse):
    model = nn.Sequential(layers(), layers())
    with together(model):
        sigma = torch.linalg.svdvals(model[1].weight.detach().double())
    torch.testing.assert_close(sigma, torch.ones_like(sigma), rtol=0, atol=5e-6)


def test_an_orthogonal_layer_keeps_lengths_of_what_it_is_applied_to():
    torch.set_float32_matmul_precision("medium")
    layer, x = SVDLinear(128, 128, bias=False), torch.randn(500, 128)
    lengths = layer(x).norm(dim=-1)
    torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(lengths, x.norm(dim=-1), rtol=1e-5, atol=0)


def backends():
    found = (getattr(backend, "matmul", None) for backend in (torch.backends.mkldnn, torch.backends.cuda))
    return [getattr(products, "fp32_precision", None) for products in found]


def test_the_mode_is_the_users_again_afterwards():
    torch.set_float32_matmul_precision("medium")
    before = backends()
    layer, barrier = layers(), threading.Barrier(4)

    def read():
        barrier.wait()
        for _ in range(20):
            layer(torch.ones(2, 128)).sum().backward()

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = backends()
    mode = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    assert (after, mode) == (before, "medium")
