"""Reflectors that reduce orthonormal columns, by elimination and one by one."""

import pytest
import torch

from spectral_param.functional import householder_product, reduction
from spectral_param.functional.reduction import reduced


def orthonormal(n, k):
    return torch.linalg.qr(torch.randn(n, k, dtype=torch.float64)).Q


def flipped(n, k, at):
    """One whose column ``at`` begins with 1 once the others are turned, so that its pivot may be zero."""
    q = torch.eye(n, dtype=torch.float64)
    q[:at, :at] = orthonormal(at, at)
    q[at + 1 :, at + 1 :] = orthonormal(n - at - 1, n - at - 1)
    return q[:, :k]


BASES = {
    "square": lambda: [orthonormal(200, 200)],
    "tall and square": lambda: [orthonormal(300, 150), orthonormal(150, 150)],
    "few columns": lambda: [orthonormal(200, 10)],
    "the identity": lambda: [torch.eye(150, dtype=torch.float64)],
    "a pivot of zero": lambda: [flipped(200, 200, at=100), orthonormal(250, 200)],
}


@pytest.mark.parametrize("lean", [1.0, -1.0, None])
@pytest.mark.parametrize("name", BASES)
def test_the_product_begins_with_the_signed_columns(name, lean):
    bases = BASES[name]()

    def signs(i, leads):
        return torch.full_like(leads, lean) if lean else torch.where(leads > 0, -1.0, 1.0)

    found, chosen = reduced(bases, signs)
    for basis, reflectors, sign in zip(bases, found, chosen, strict=True):
        k = basis.shape[1]
        torch.testing.assert_close(householder_product(reflectors, columns=k), basis * sign, rtol=0, atol=1e-12)
        norms = torch.linalg.vector_norm(reflectors, dim=0)
        torch.testing.assert_close(norms[:-1], torch.ones(k - 1, dtype=torch.float64))


def test_elimination_finds_the_reflectors_that_are_found_one_by_one():
    bases = [orthonormal(300, 200), orthonormal(200, 200)]

    def signs(i, leads):
        return torch.where(leads.sum(0) < 0, 1.0, -1.0).expand_as(leads)

    one_by_one = [torch.zeros_like(b) for b in bases]
    reduction._one_by_one(bases, signs, one_by_one, torch.ones(2, 200, dtype=torch.float64))
    for found, wanted in zip(reduced(bases, signs)[0], one_by_one, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
