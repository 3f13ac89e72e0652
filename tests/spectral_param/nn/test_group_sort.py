import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spectral_param.bounds import lipschitz_bound
from spectral_param.nn import Centering, GroupSort, MaxMin


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.sampled_from([1, -1, 2]), st.integers(0, 10_000))
def test_its_jacobian_is_a_permutation(size: int, groups: int, dim: int, seed: int) -> None:
    torch.manual_seed(seed)
    shape = [2, 3, 3]
    shape[dim] = size * groups
    x = torch.randn(shape, dtype=torch.float64)
    count = x.numel()
    jacobian = torch.autograd.functional.jacobian(GroupSort(size, dim), x).reshape(count, count)
    assert torch.equal(jacobian @ jacobian.mT, torch.eye(count, dtype=torch.float64))
    y = GroupSort(size, dim)(x).movedim(dim, -1).unflatten(-1, (groups, size))
    assert torch.equal(y, x.movedim(dim, -1).unflatten(-1, (groups, size)).sort().values)


def test_in_pairs_it_is_maxmin() -> None:
    x = torch.randn(2, 6, 4, 4)
    assert torch.equal(MaxMin()(x), GroupSort(2)(x))
    assert torch.equal(MaxMin()(x), x.unflatten(1, (3, 2)).sort(2).values.flatten(1, 2))


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="size: expected at least 2, got 1"):
        GroupSort(1)
    with pytest.raises(ValueError, match="input: expected a number of channels that 2 divides, got 3"):
        MaxMin()(torch.ones(1, 3))
    with pytest.raises(ValueError, match="dim: expected dimensions of a sample"):
        Centering(dim=(0, 1))


@pytest.mark.parametrize("dim", [(-2, -1), 1, (1, 2, 3)])
def test_centering_is_an_orthogonal_projection(dim: int | tuple[int, ...]) -> None:
    x = torch.randn(2, 2, 2, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(Centering(dim), x).reshape(24, 24)
    torch.testing.assert_close(jacobian @ jacobian, jacobian)
    torch.testing.assert_close(jacobian, jacobian.mT)
    torch.testing.assert_close(torch.linalg.matrix_norm(jacobian, 2), torch.ones((), dtype=torch.float64))


def test_the_bound_of_each_is_one() -> None:
    assert lipschitz_bound(nn.Sequential(GroupSort(4), MaxMin(), Centering())) == 1
