import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional.thin_product import thin_product


@pytest.mark.parametrize(("p", "q"), [(3, 3), (4, 2), (2, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_product_and_gradients(p, q, bias):
    k = min(p, q)
    shapes = ((5, q), (k,), (p, 2), (q, 2), (p,))
    x, sigma, left, right, b = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes)
    diagonal = torch.zeros(p, q, dtype=torch.float64)
    diagonal.diagonal().copy_(sigma.detach())
    inputs = (x, sigma, left, right, b if bias else None)
    want = x @ (diagonal - left @ right.mT).mT + (b if bias else 0)
    torch.testing.assert_close(thin_product(*inputs), want)
    assert gradcheck(thin_product, inputs)
    assert gradgradcheck(thin_product, inputs)


def test_frozen_factors_get_no_gradient():
    x, sigma = torch.randn(5, 3), torch.randn(3, requires_grad=True)
    thin_product(x, sigma, torch.randn(3, 1), torch.randn(3, 1)).sum().backward()
    torch.testing.assert_close(sigma.grad, x.sum(0))


def test_each_tensor_has_its_gradient_without_the_others():
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((5, 3), (3,), (4, 2), (3, 2), (4,))]

    def gradients(needed):
        inputs = [t.clone().requires_grad_(i in needed) for i, t in enumerate(tensors)]
        thin_product(*inputs).sin().sum().backward()
        return [t.grad for t in inputs]

    for i, want in enumerate(gradients(range(5))):
        alone = gradients([i])
        torch.testing.assert_close(alone.pop(i), want)
        assert all(grad is None for grad in alone)
