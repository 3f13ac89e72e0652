"""What ours is timed against computes the same weights."""

import pytest
import torch
from torch import nn

from benchmarks import fasth, one_by_one
from benchmarks.peers import HAS_TORCH_HOUSEHOLDER, ReflectorLinear, ReflectorRNN, torch_householder
from spectral_param.functional import rnn_scan
from tests.reference import reflector_product, svd_product

ALL = pytest.mark.parametrize("turned", [one_by_one.turned, fasth.turned], ids=["Algorithms 1-3", "FastH"])


@ALL
@pytest.mark.parametrize("m", [1, 3, 4, 7])
@pytest.mark.parametrize("transpose", [False, True])
def test_product_and_gradients(turned, m, transpose):
    reflectors = torch.randn(7, m, dtype=torch.float64).tril().requires_grad_()
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    u = reflector_product(reflectors)
    torch.testing.assert_close(turned(reflectors, x, transpose), (u.mT if transpose else u) @ x)
    assert torch.autograd.gradcheck(lambda r, x: turned(r.tril(), x, transpose), (reflectors, x))


@ALL
def test_layers_apply_the_svd(turned):
    layer, rnn = ReflectorLinear(6, 4, turned), ReflectorRNN(2, 6, 4, turned)
    for module in (layer, rnn):
        nn.init.normal_(module.weight.sigma)
    x = torch.randn(3, 6)
    w = [svd_product(m.weight.u, m.weight.sigma, m.weight.v).float() for m in (layer, rnn)]
    torch.testing.assert_close(layer(x), x @ w[0].mT, rtol=1e-4, atol=1e-4)
    x = torch.randn(5, 3, 2)
    last = rnn_scan(x, torch.zeros(3, 6), rnn.input.weight, w[1], rnn.input.bias, "relu")[1]
    torch.testing.assert_close(rnn(x)[1][0], last, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not HAS_TORCH_HOUSEHOLDER, reason="torch-householder is not installed")
def test_torch_householder_gives_an_orthogonal_matrix():
    w = torch_householder(nn.Linear(6, 6)).weight
    torch.testing.assert_close(w.mT @ w, torch.eye(6), rtol=0, atol=1e-5)
