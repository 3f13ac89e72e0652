"""Gradients that keep their graph are those that keep none, however what a function is given hangs together."""

import pytest
import torch
from torch import nn

from spectral_param import SVDParametrization, inverse, register_svd_parametrization, together
from spectral_param.functional import householder_apply
from spectral_param.nn import SpectralRNN, SVDConv1d, SVDLinear

DOUBLE = {"dtype": torch.float64}


def of(module, forward, *shape):
    """What gives a number, and the trained numbers that it depends on."""
    x = torch.randn(*shape, **DOUBLE)
    return lambda: forward(module, x), [p for p in module.parameters() if p.requires_grad]


def once(module, x):
    return module(x).pow(3).sum()


def twice(module, x):
    return module(module(x).tanh()).pow(3).sum()


def states(rnn, x):
    return rnn(x)[0].pow(3).sum()


def two_segments(rnn, x):
    first, h = rnn(x[:3])
    second, _ = rnn(x[3:], h)
    return first.pow(3).sum() + second.pow(3).sum()


def nested_reflectors():
    reflectors, x = torch.randn(6, 2, **DOUBLE, requires_grad=True), torch.randn(6, 3, **DOUBLE)
    return lambda: householder_apply(reflectors, householder_apply(reflectors, x).tanh()).pow(3).sum(), [reflectors]


def the_same_twice():
    both = torch.randn(6, 2, **DOUBLE, requires_grad=True)
    return lambda: householder_apply(both, both).pow(3).sum(), [both]


def linear(n=6, **options):
    return register_svd_parametrization(nn.Linear(n, n, **DOUBLE), **options)


def built_together():
    few = {"reflectors": 2, "init": "orthogonal"}
    model, x = nn.Sequential(*[linear(**few) for _ in range(3)]), torch.randn(3, 6, **DOUBLE)

    def run():
        with together(model):
            return twice(model, x)

    return run, list(model.parameters())


def tied_together():
    first, second = linear(), linear()
    for name in ("original0", "original1", "original2"):
        setattr(second.parametrizations.weight, name, getattr(first.parametrizations.weight, name))
    model, x = nn.Sequential(first, second), torch.randn(3, 6, **DOUBLE)

    def run():
        with together(model):
            return once(model, x)

    return run, list(first.parameters())


CASES = {
    "reflectors, nested": nested_reflectors,
    "the same as both": the_same_twice,
    "SVDLinear": lambda: of(SVDLinear(6, 6, reflectors=2, **DOUBLE), twice, 3, 6),
    "SVDConv1d": lambda: of(SVDConv1d(4, 4, 3, **DOUBLE), twice, 1, 4, 5),
    "by thin factors": lambda: of(linear(64, reflectors=2, init="orthogonal"), twice, 2, 64),
    "all reflectors": lambda: of(linear(), twice, 3, 6),
    "a frozen base": lambda: of(linear(base="frozen", reflectors=2, rank=2), twice, 3, 6),
    "inverse": lambda: of(linear(), lambda m, x: once(m, x @ inverse(m)) + m.weight.pow(2).sum(), 3, 6),
    "SpectralRNN, L and R": lambda: of(SpectralRNN(2, 32, reflectors=4, matrix_free=True, **DOUBLE), states, 6, 2, 2),
    "SpectralRNN, W": lambda: of(SpectralRNN(2, 8, **DOUBLE), states, 6, 2, 2),
    "two segments, L and R": lambda: of(
        SpectralRNN(2, 32, reflectors=4, matrix_free=True, **DOUBLE), two_segments, 6, 2, 2
    ),
    "two segments, W": lambda: of(SpectralRNN(2, 8, **DOUBLE), two_segments, 6, 2, 2),
    "two layers": lambda: of(SpectralRNN(2, 8, 2, learn_initial_state=True, **DOUBLE), states, 6, 2, 2),
    "together": built_together,
    "together, tied": tied_together,
}


@pytest.mark.parametrize("case", CASES)
def test_with_a_graph_as_without(case):
    torch.manual_seed(0)
    run, trained = CASES[case]()
    without = torch.autograd.grad(run(), trained)
    with_graph = torch.autograd.grad(run(), trained, create_graph=True)
    for expected, found in zip(without, with_graph, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("by", ["SpectralRNN, L and R", "two segments, L and R"])
def test_second_derivatives_are_those_of_w(by):
    torch.manual_seed(0)
    module = SpectralRNN(2, 32, reflectors=4, matrix_free=True, **DOUBLE)
    twin = SpectralRNN(2, 32, reflectors=4, matrix_free=False, **DOUBLE)
    twin.load_state_dict(module.state_dict())
    x, forward = torch.randn(6, 2, 2, **DOUBLE), states if "segments" not in by else two_segments

    def products(rnn):
        [p] = [p for p in rnn.modules() if isinstance(p, SVDParametrization)]
        (by_sigma,) = torch.autograd.grad(forward(rnn, x), p.raw_sigma, create_graph=True)
        return torch.autograd.grad(by_sigma.square().sum(), [p.raw_sigma, *p.factors[:1]])

    for found, expected in zip(products(module), products(twin), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-12)
