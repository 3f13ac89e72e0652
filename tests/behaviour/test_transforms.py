"""Registered models under who looks on: torch.export, ONNX, make_fx, FakeTensorMode, batched gradients."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from spectral_param import Band, register_all, register_svd_parametrization, remove_svd_parametrization
from spectral_param.nn import SpectralRNN, SVDLinear


def registered(p, q, **kwargs):
    return register_svd_parametrization(nn.Linear(q, p), init="orthogonal", **kwargs)


LAYERS = {
    "W built": lambda: registered(16, 16, reflectors=2, matrix_free=False),
    "as it comes": lambda: registered(16, 16, reflectors=2),
    "matrix-free": lambda: registered(3, 8, matrix_free=True),
    "matrix-free, thin": lambda: registered(16, 16, reflectors=2, matrix_free=True),
    "matrix-free, chunks": lambda: registered(8, 8, chunks=2, matrix_free=True),
    "σ alone": lambda: registered(8, 8, train="sigma", matrix_free=True),
    "SVDLinear": lambda: SVDLinear(8, 3),
    "SVDLinear, thin": lambda: SVDLinear(16, 16, reflectors=2),
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_a_layer_is_exported_with_a_dynamic_batch(make, shape):
    layer = make().eval()
    x = torch.randn(*shape, layer.in_features)
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    exported = torch.export.export(layer, (x,), dynamic_shapes=(batch,)).module()
    for size in (2, 7, 33):
        x = torch.randn(size, *shape[1:], layer.in_features)
        torch.testing.assert_close(exported(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.Linear(8, 8), nn.Conv2d(2, 2, 2), SVDLinear(8, 8)])
def test_onnx_is_refused_with_the_remedy(layer, tmp_path):
    x = torch.randn(1, 2, 8, 8)
    model = nn.Sequential(layer if isinstance(layer, SVDLinear) else register_svd_parametrization(layer)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        with pytest.raises(RuntimeError, match=r"export a folded copy: remove_svd_parametrization\(copy.deepcopy"):
            torch.onnx.export(model, (x,), tmp_path / "model.onnx", dynamo=False)
    folded = remove_svd_parametrization(copy.deepcopy(model))
    torch.testing.assert_close(folded(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_make_fx_records_a_layer(make):
    layer = make()
    x = torch.randn(4, layer.in_features)
    layer(x)
    torch.testing.assert_close(make_fx(lambda x: layer(x))(x)(x), layer(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_a_fake_forward_leaves_nothing_behind(make):
    layer = make()
    x = torch.randn(4, layer.in_features)
    want = layer(x)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(layer(torch.randn(4, layer.in_features)), FakeTensor)
    assert torch.equal(layer(x), want)


@pytest.mark.parametrize(
    "kwargs", [{}, {"train": "sigma"}, {"init": "orthogonal", "reflectors": 2}, {"chunks": 2}, {"sigma": Band(0.1)}]
)
def test_shapes_alone_are_registered_read_and_folded(kwargs):
    with FakeTensorMode():
        layer = register_svd_parametrization(nn.Linear(8, 8), **kwargs)
        assert isinstance(layer(torch.ones(2, 8)), FakeTensor)
        layer.reset_parameters()
        layer.weight = torch.ones(8, 8)
        assert remove_svd_parametrization(layer).weight.shape == (8, 8)
    layer = register_svd_parametrization(nn.Linear(8, 8, device="meta"), **kwargs)
    layer.reset_parameters()
    layer.to_empty(device="cpu").reset_parameters()
    assert layer(torch.ones(2, 8)).isfinite().all()


def test_whole_models_of_shapes_alone():
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 8))
        assert len(register_all(model).taken) == 3
        model(torch.ones(3, 8))
        SpectralRNN(2, 8, reflectors=2)(torch.ones(3, 1, 2))


# ------------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_batched_gradients_are_those_one_by_one(make):
    layer = make().double()
    x = torch.randn(4, layer.in_features, dtype=torch.float64, requires_grad=True)
    inputs = [x, *(p for p in layer.parameters() if p.requires_grad)]
    cotangents = torch.randn(3, 4, layer.out_features, dtype=torch.float64)
    batched = torch.autograd.grad(layer(x), inputs, cotangents, is_grads_batched=True)
    singly = [torch.autograd.grad(layer(x), inputs, cotangent) for cotangent in cotangents]
    torch.testing.assert_close(list(batched), [torch.stack(each) for each in zip(*singly, strict=True)])


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_vectorized_jacobians(make):
    layer = make().double()
    x = torch.randn(2, layer.in_features, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(layer, x, vectorize=True), jacobian(layer, x))
    hessian = torch.autograd.functional.hessian
    torch.testing.assert_close(*(hessian(lambda x: layer(x).sin().sum(), x, vectorize=way) for way in (True, False)))


def test_batched_gradients_of_a_recurrence():
    for matrix_free in (True, False):
        rnn = SpectralRNN(2, 6, reflectors=2, matrix_free=matrix_free, dtype=torch.float64)
        x = torch.randn(5, 3, 2, dtype=torch.float64, requires_grad=True)
        inputs, cotangents = [x, *rnn.parameters()], torch.randn(2, 5, 3, 6, dtype=torch.float64)
        batched = torch.autograd.grad(rnn(x)[0], inputs, cotangents, is_grads_batched=True)
        singly = [torch.autograd.grad(rnn(x)[0], inputs, cotangent) for cotangent in cotangents]
        torch.testing.assert_close(list(batched), [torch.stack(each) for each in zip(*singly, strict=True)])


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("shape", [(1,), (4,), (100,), (2, 4)])
def test_outputs_and_gradients_by_the_input_are_contiguous(make, shape):
    layer = make()
    x = torch.randn(*shape, layer.in_features, requires_grad=True)
    y = layer(x)
    [grad] = torch.autograd.grad(y.square().sum(), x)
    assert y.is_contiguous()
    assert grad.is_contiguous()
