"""Reading and assigning, outside of a forward and within."""

import torch
from torch import nn

from spectral_param import register_svd_parametrization, svd_parametrizations


def test_an_assignment_ends_the_watch_over_what_was_read_before():
    """Warnings are errors here."""
    layer = register_svd_parametrization(nn.Linear(4, 4))
    weight = layer.weight
    with torch.no_grad():
        weight.mul_(2)
    layer.weight = weight
    torch.testing.assert_close(layer(torch.eye(4)) - layer.bias, weight.mT, rtol=1e-5, atol=1e-5)


class Looks(nn.MultiheadAttention):
    """Reads its weight without a graph before torch reads it with one."""

    def forward(self, x):
        with torch.no_grad():
            self.norm = self.in_proj_weight.norm()
        return super().forward(x, x, x, need_weights=False)[0]


class Halves(nn.MultiheadAttention):
    """Reads its weight and assigns half of it, before torch reads it."""

    def forward(self, x):
        self.in_proj_weight = 0.5 * self.in_proj_weight.detach()
        return super().forward(x, x, x, need_weights=False)[0]


def twins(kind):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2)
    module = kind(8, 2)
    module.load_state_dict(plain.state_dict())
    return plain, register_svd_parametrization(module, "in_proj_weight", chunks=3), torch.randn(5, 3, 8)


def test_attention_reads_its_weight_once_for_each_gradient_mode():
    plain, module, x = twins(Looks)
    want, got = plain(x, x, x, need_weights=False)[0], module(x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.norm, plain.in_proj_weight.norm())
    got.square().sum().backward()
    [(_, p)] = svd_parametrizations(module)
    assert all(factor.grad is not None and factor.grad.any() for factor in p.factors)


def test_an_assignment_within_a_forward_is_what_is_read_after_it():
    plain, module, x = twins(Halves)
    for _ in range(2):
        with torch.no_grad():
            plain.in_proj_weight.mul_(0.5)
        want, got = plain(x, x, x, need_weights=False)[0], module(x)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(module.in_proj_weight, plain.in_proj_weight, rtol=1e-5, atol=1e-6)
