"""The table of operations in docs/performance.md: leading terms of a p = q = n weight with m reflectors on each side.

Multiplications and additions in products of matrices and in triangular solves, of U, V and N vectors.
"""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from spectral_param.functional.factorization import ReflectorProduct
from spectral_param.functional.householder import reflect
from spectral_param.functional.low_rank import low_rank_factors, low_rank_weight
from spectral_param.functional.thin_product import thin_product

aten = torch.ops.aten


def _added(out, a, b, *args, **kwargs) -> int:
    """``out += a b``: (n, k) times (k, b), batched or not."""
    return 2 * torch.Size(a).numel() * b[-1]


def _solved(triangle, b, *args, **kwargs) -> int:
    """A triangle with ones on its diagonal: k² operations a row."""
    return torch.Size(b).numel() * triangle[-1]


MAPPING = {aten.addmm_: _added, aten.baddbmm_: _added, aten.linalg_solve_triangular: _solved}


def counted(function) -> tuple[int, int]:
    """Operations of a forward and of its backward."""
    with FlopCounterMode(display=False, custom_mapping=MAPPING) as forward:
        results = function()
    results = results if isinstance(results, tuple) else (results,)
    gradients = [torch.randn_like(result) for result in results]
    with FlopCounterMode(display=False, custom_mapping=MAPPING) as backward:
        torch.autograd.backward(results, gradients)
    return forward.get_total_flops(), backward.get_total_flops()


def svd(n: int, m: int) -> tuple[ReflectorProduct, Tensor, ReflectorProduct]:
    size = n * m - m * (m - 1) // 2
    u, v = (ReflectorProduct(torch.randn(size, requires_grad=True), n, m) for _ in range(2))
    return u, torch.ones(n, requires_grad=True), v


def vectors(count: int, n: int) -> Tensor:
    return torch.randn(count, n, requires_grad=True)


SIZES = pytest.mark.parametrize(("n", "m", "count"), [(64, 8, 100), (96, 16, 30), (128, 4, 500)])


@SIZES
def test_thin_factors_take_10_and_18_times_n_m_squared(n, m, count):
    forward, backward = counted(lambda: low_rank_factors(*svd(n, m)))
    assert (forward, backward) == (10 * n * m**2, 18 * n * m**2)


@SIZES
def test_a_vector_by_them_takes_8_and_16_times_n_m(n, m, count):
    left, right = (torch.randn(n, 2 * m, requires_grad=True) for _ in range(2))
    sigma, x = torch.ones(n, requires_grad=True), vectors(count, n)
    forward, backward = counted(lambda: thin_product(x, sigma, left, right))
    assert (forward, backward) == (8 * n * m * count, 16 * n * m * count)


@SIZES
def test_w_by_them_takes_4_and_8_times_n_squared_m(n, m, count):
    forward, backward = counted(lambda: low_rank_weight(*svd(n, m)))
    assert (forward, backward) == (10 * n * m**2 + 4 * n**2 * m, 18 * n * m**2 + 8 * n**2 * m)


@SIZES
def test_reflectors_in_compact_wy_form_take_8_and_20_times_n_m_a_vector(n, m, count):
    """U's and V's: 4 n m and 10 n m each, and what their triangles take."""
    reflectors, x = torch.randn(n, m, requires_grad=True), vectors(n, count)
    forward, backward = counted(lambda: reflect(reflectors, x, transpose=False, plainly=False))
    assert forward == 4 * n * m * count + m**2 * count + 2 * n * m**2
    assert backward == 10 * n * m * count + 3 * m**2 * count + 2 * n * m**2


def test_the_papers_rows_of_table_1_do_not_add_up():
    """Backward as printed, 6 n (m₁ + m₂) - 1.5 (m₁² + m₂²), against the sum of its own Hgrad row, 3 n + 6 k."""
    n, m = 1000, 50
    summed = 2 * sum(3 * n + 6 * k for k in range(n - m + 1, n + 1))
    printed = 6 * n * 2 * m - 1.5 * 2 * m**2
    assert summed == pytest.approx(2 * (9 * n * m - 3 * m**2), rel=0.01)
    assert summed / printed == pytest.approx(1.5, rel=0.02)


def test_the_papers_forward_row_is_the_sum_of_its_hprod_row():
    n, m = 1000, 50
    summed = 2 * sum(4 * k for k in range(n - m + 1, n + 1))
    assert summed == pytest.approx(4 * n * 2 * m - 2 * 2 * m**2, rel=0.001)
