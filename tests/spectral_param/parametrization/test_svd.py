import pytest
import torch
from torch import nn

from spectral_param import register_svd_parametrization, together
from spectral_param.functional import rnn_scan
from spectral_param.functional.scan import low_rank_scan
from tests.reference import relative


def weight_in_full(x):
    layer = register_svd_parametrization(nn.Linear(24, 24), init="orthogonal")
    return layer.weight * x[:1], layer.parametrizations.parameters()


def weight_of_few_reflectors(x):
    layer = register_svd_parametrization(nn.Linear(24, 24), reflectors=3, init="orthogonal")
    return layer.weight * x[:1], layer.parametrizations.parameters()


def layer_without_weight(x):
    layer = register_svd_parametrization(nn.Linear(24, 24), reflectors=3, init="orthogonal", matrix_free=True)
    return layer(x), layer.parameters()


def weights_together(x):
    layers = [register_svd_parametrization(nn.Linear(24, 24), reflectors=3, init="orthogonal") for _ in range(2)]
    with together(nn.ModuleList(layers)):
        weights = [layer.weight * x[:1] for layer in layers]
    return torch.stack(weights), [p for layer in layers for p in layer.parametrizations.parameters()]


def dense_scan(x):
    tensors = [t.requires_grad_() for t in (torch.zeros(3, 24), torch.randn(24, 24) / 5, torch.randn(24, 24) / 5)]
    return rnn_scan(x.view(4, 3, 24), *tensors)[0], tensors


def thin_scan(x):
    shapes = ((3, 24), (24, 24), (24,), (24, 3), (24, 3))
    tensors = [(torch.randn(shape) / 5).requires_grad_() for shape in shapes]
    return low_rank_scan(x.view(4, 3, 24), *tensors)[0], tensors


@pytest.mark.parametrize(
    "run", [weight_in_full, weight_of_few_reflectors, layer_without_weight, weights_together, dense_scan, thin_scan]
)
def test_a_backward_under_autocast_is_in_the_precision_of_its_forward(run):
    torch.manual_seed(0)
    x, found = torch.randn(12, 24), []
    for autocast in (False, True):
        torch.manual_seed(1)
        output, parameters = run(x)
        loss = output.sin().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found.append(torch.autograd.grad(loss, list(parameters)))
    for want, got in zip(*found, strict=True):
        assert relative(got, want) < 1e-5
