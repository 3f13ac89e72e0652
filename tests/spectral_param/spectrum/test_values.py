import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from spectral_param import (
    Band,
    Fixed,
    condition_number,
    inverse,
    log_abs_det,
    pinv,
    register_svd_parametrization,
    singular_values,
    solve,
    spectral_margin,
    spectral_norm,
    svd,
    svd_parametrizations,
)

SHAPES = [(1, 1), (5, 5), (9, 4), (4, 9), (1, 6), (6, 1)]
SQUARE = [(1, None), (2, (0, 1)), (5, None), (6, (2, 6)), (7, 3)]


def registered(p, q, reflectors=None, chunks=1, dtype=torch.float64):
    """A layer whose σ have mixed signs, no order, and condition below 100."""
    layer = nn.Linear(q, p * chunks, dtype=dtype)
    register_svd_parametrization(layer, reflectors=reflectors, chunks=chunks, init="orthogonal")
    [(_, parametrization)] = svd_parametrizations(layer)
    raw = parametrization.factors[1 if parametrization.reflectors[0] else 0]
    with torch.no_grad():
        raw.uniform_(0.05, 3.0).mul_(torch.randint(2, raw.shape) * 2 - 1)
    return layer


def blocks_of(layer):
    [(_, parametrization)] = svd_parametrizations(layer)
    stack = layer.weight.reshape(parametrization.chunks, *parametrization.shape)
    return stack[0] if len(stack) == 1 else stack


def factors_of(layer):
    return list(layer.parametrizations.weight.parameters())


@pytest.fixture
def no_decomposition(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a decomposition was computed")

    for name in ("svd", "svdvals", "inv", "inv_ex", "pinv", "solve", "solve_ex", "slogdet", "qr", "eigh", "cond"):
        monkeypatch.setattr(torch.linalg, name, refuse)


def gradients(value, layer):
    weights = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).reshape(value.shape)
    return torch.autograd.grad((value * weights).sum(), factors_of(layer), retain_graph=True, allow_unused=True)


def assert_same(value, expected, layer, tolerance=1e-10):
    """The same numbers, and the same gradients with respect to the factors."""
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(gradients(value, layer), gradients(expected, layer), strict=True):
        torch.testing.assert_close(torch.zeros_like(theirs) if mine is None else mine, theirs, rtol=1e-8, atol=1e-8)


# ----------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunks", [1, 3])
def test_numbers_equal_those_of_the_weight(shape, chunks):
    layer = registered(*shape, chunks=chunks)
    expected = torch.linalg.svdvals(blocks_of(layer))
    assert_same(singular_values(layer), expected, layer)
    assert_same(spectral_norm(layer), expected[..., 0], layer)
    assert_same(spectral_margin(layer, center=0.5), (expected - 0.5).abs().max(), layer)
    assert_same(condition_number(layer), expected[..., 0] / expected[..., -1], layer)
    if shape[0] == shape[1]:
        assert_same(log_abs_det(layer), torch.linalg.slogdet(blocks_of(layer)).logabsdet, layer)


@pytest.mark.parametrize("value", [0.0, 1e-30, 2.0])
def test_a_singular_weight(value):
    layer = register_svd_parametrization(nn.Linear(3, 3, dtype=torch.float64), sigma=Fixed(value), init="orthogonal")
    assert condition_number(layer).item() == (1.0 if value else math.inf)
    assert log_abs_det(layer).item() == pytest.approx(3 * math.log(value) if value else -math.inf)


def test_gradient_of_an_infinite_condition_number_is_zero():
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.diag(torch.tensor([1.0, 0.0]))
    register_svd_parametrization(layer)
    condition_number(layer).backward()
    assert layer.parametrizations.weight.original1.grad.tolist() == [0.0, 0.0]


@pytest.mark.usefixtures("no_decomposition")
def test_nothing_is_decomposed():
    layer = registered(4, 4, chunks=2)
    for reading in (singular_values, spectral_norm, spectral_margin, condition_number, log_abs_det, svd, inverse, pinv):
        reading(layer)
    solve(layer, torch.ones(4))


# ----------------------------------------------------------------------------------------------------------- matrices


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reflectors", ["all", (1, 0), (0, 1), 1])
@pytest.mark.parametrize("chunks", [1, 2])
def test_svd_in_the_form_of_torch(shape, reflectors, chunks):
    layer = registered(*shape, reflectors=None if reflectors == "all" else reflectors, chunks=chunks)
    w, (u, s, vh) = blocks_of(layer), svd(layer)
    expected = torch.linalg.svd(w, full_matrices=False)
    assert [x.shape for x in (u, s, vh)] == [x.shape for x in expected]
    torch.testing.assert_close(s, expected.S)
    torch.testing.assert_close(u @ torch.diag_embed(s) @ vh, w)
    eye = torch.eye(min(shape), dtype=torch.float64).expand(*s.shape, -1)
    torch.testing.assert_close(u.mT @ u, eye)
    torch.testing.assert_close(vh @ vh.mT, eye)
    signs = (u * expected.U).sum(-2, keepdim=True).sign()
    torch.testing.assert_close(u * signs, expected.U)
    torch.testing.assert_close(vh * signs.mT, expected.Vh)


def test_gradients_of_svd():
    layer = registered(5, 4)
    u, s, vh = svd(layer)
    rebuilt = u @ torch.diag(s) @ vh
    assert_same(rebuilt, layer.weight, layer)
    projection = u[:, :2] @ u[:, :2].mT
    expected = torch.linalg.svd(layer.weight, full_matrices=False).U[:, :2]
    assert_same(projection, expected @ expected.mT, layer)


def test_gradients_of_svd_where_singular_values_are_equal():
    layer = register_svd_parametrization(nn.Linear(4, 4), sigma=Band(0.1), init="orthogonal")
    u, s, vh = svd(layer)
    (u[0, 0] + s.sum() + vh[0, 0]).backward()
    assert all(factor.grad.isfinite().all() for factor in factors_of(layer))


@pytest.mark.parametrize(("n", "reflectors"), SQUARE)
@pytest.mark.parametrize("chunks", [1, 2])
def test_inverse(n, reflectors, chunks):
    layer = registered(n, n, reflectors, chunks)
    assert_same(inverse(layer), torch.linalg.inv(blocks_of(layer)), layer)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunks", [1, 2])
def test_pinv(shape, chunks):
    layer = registered(*shape, chunks=chunks)
    assert_same(pinv(layer), torch.linalg.pinv(blocks_of(layer)), layer)


def test_pinv_of_low_rank():
    layer = nn.Linear(6, 5, dtype=torch.float64)
    layer.weight.data = torch.randn(5, 2, dtype=torch.float64) @ torch.randn(2, 6, dtype=torch.float64)
    expected = torch.linalg.pinv(layer.weight.detach())
    register_svd_parametrization(layer)
    torch.testing.assert_close(pinv(layer), expected)
    pinv(layer).sum().backward()
    assert all(factor.grad.isfinite().all() for factor in factors_of(layer))


def test_pinv_of_zero_is_zero():
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    assert torch.equal(pinv(register_svd_parametrization(layer)), torch.zeros(3, 2))


@pytest.mark.parametrize("b_shape", [(5,), (5, 1), (5, 3), (2, 5, 3), (4, 1, 5, 2)])
@pytest.mark.parametrize("reflectors", [None, (0, 2), (3, 0)])
def test_solve(b_shape, reflectors):
    layer = registered(5, 5, reflectors)
    b = torch.randn(b_shape, dtype=torch.float64)
    assert_same(solve(layer, b), torch.linalg.solve(layer.weight, b), layer)


@pytest.mark.parametrize("b_shape", [(4,), (3, 4), (4, 2), (3, 4, 2), (5, 1, 4, 2)])
def test_solve_block_by_block(b_shape):
    layer = registered(4, 4, chunks=3)
    b = torch.randn(b_shape, dtype=torch.float64)
    assert_same(solve(layer, b), torch.linalg.solve(blocks_of(layer), b), layer)


def test_solve_passes_gradients_to_the_right_hand_side():
    layer = registered(4, 4)
    assert torch.autograd.gradcheck(
        lambda b: solve(layer, b), torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    )


# ------------------------------------------------------------------------------------------------ dtypes and transforms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_registered", [True, False])
def test_lower_precision_is_read_in_float32(dtype, is_registered):
    layer = nn.Linear(4, 4, bias=False, dtype=dtype)
    if is_registered:
        register_svd_parametrization(layer, sigma=Band(0.5), init="orthogonal")
    w = layer.weight.detach().float()
    for reading in (singular_values, inverse, log_abs_det, pinv):
        assert reading(layer).dtype == torch.float32
    assert torch.allclose(inverse(layer) @ w, torch.eye(4), atol=0.05 if dtype != torch.float32 else 1e-4)
    b = torch.ones(4, dtype=dtype)
    assert solve(layer, b).dtype == dtype
    assert torch.allclose(w @ solve(layer, b).float(), torch.ones(4), atol=0.1 if dtype != torch.float32 else 1e-4)


def test_autocast_changes_nothing():
    layer = registered(6, 6, dtype=torch.float32)
    b = torch.randn(6)
    readings = (inverse, pinv, lambda x: svd(x).U, log_abs_det, lambda x: solve(x, b))
    before = [reading(layer) for reading in readings]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        after = [reading(layer) for reading in readings]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_compiled_and_mapped():
    layer = registered(4, 4)
    b = torch.randn(3, 4, dtype=torch.float64)

    def flow(layer, b):
        return solve(layer, b.mT).mT, inverse(layer), svd(layer), log_abs_det(layer)

    compiled = torch.compile(flow, fullgraph=True, backend="eager")(layer, b)
    torch.testing.assert_close(compiled, flow(layer, b))
    torch.testing.assert_close(torch.vmap(lambda one: solve(layer, one))(b), solve(layer, b.mT).mT)


# -------------------------------------------------------------------------------------- weights that are not registered


def test_plain_weights():
    layer = nn.Linear(5, 5)
    w, b = layer.weight, torch.randn(5)
    torch.testing.assert_close(singular_values(layer), torch.linalg.svdvals(w))
    torch.testing.assert_close(condition_number(layer), torch.linalg.cond(w), rtol=1e-4, atol=0)
    torch.testing.assert_close(log_abs_det(layer), torch.linalg.slogdet(w).logabsdet)
    torch.testing.assert_close(inverse(layer), torch.linalg.inv(w))
    torch.testing.assert_close(pinv(layer), torch.linalg.pinv(w))
    torch.testing.assert_close(solve(layer, b), torch.linalg.solve(w, b))
    torch.testing.assert_close(tuple(svd(layer)), tuple(torch.linalg.svd(w)))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(2, 6, 3), (6,)),
        (nn.ConvTranspose2d(6, 2, 3), (2,)),
        (nn.Bilinear(3, 4, 5), (5, 3)),
        (nn.Bilinear(3, 4, 1), (3,)),
        (nn.Conv2d(2, 4, 3, groups=2), (4,)),
    ],
)
def test_plain_weights_are_read_as_registered_ones(module, shape):
    before = singular_values(module)
    assert before.shape == shape
    register_svd_parametrization(module)
    torch.testing.assert_close(singular_values(module), before, rtol=1e-4, atol=1e-6)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_weights_changed_further_on_top():
    layer = registered(3, 3, chunks=2)
    before, inverses = singular_values(layer), inverse(layer)
    parametrize.register_parametrization(layer, "weight", Doubled())
    torch.testing.assert_close(singular_values(layer), 2 * before)
    torch.testing.assert_close(inverse(layer), inverses / 2)


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("reading", [singular_values, condition_number, log_abs_det, svd, inverse, pinv])
def test_weights_that_are_not_there(reading):
    with pytest.raises(ValueError, match="^tensor_name: Linear has no weight 'kernel'; it has weight, bias"):
        reading(nn.Linear(2, 2), "kernel")
    with pytest.raises(
        ValueError, match="^tensor_name: MultiheadAttention has no weight 'in_proj_weight'; it has q_proj"
    ):
        reading(nn.MultiheadAttention(4, 2, kdim=3), "in_proj_weight")
    with pytest.raises(ValueError, match="^tensor_name: 'weight' of LazyLinear has no shape before the first forward"):
        reading(nn.LazyLinear(3), "weight")
    with pytest.raises(ValueError, match="it has weight, bias"):
        reading(register_svd_parametrization(nn.Linear(2, 2)), "kernel")
    model = nn.Sequential(nn.ReLU(), register_svd_parametrization(nn.Linear(2, 2)))
    for name in ("weight", "1.weight"):
        with pytest.raises(
            ValueError, match=r"it has none; give get_submodule\('1'\) of it, or the whole to spectral_t"
        ):
            reading(model, name)
    with pytest.raises(ValueError, match=r"has no weight '0.weight'; it has none\.$"):
        reading(model, "0.weight")
    with pytest.raises(TypeError, match="^tensor_name: expected a string, got int"):
        reading(nn.Linear(2, 2), 3)
    with pytest.raises(ValueError, match=r"^tensor_name: expected a weight of two dimensions"):
        reading(nn.LayerNorm(3))


@pytest.mark.parametrize("reading", [log_abs_det, inverse, lambda layer: solve(layer, torch.ones(3))])
def test_weights_that_are_not_square(reading):
    layer = nn.Linear(3, 2)
    for is_registered in (False, True):
        with pytest.raises(ValueError, match="^tensor_name: expected a square weight, 'weight' is read as 2×3"):
            reading(layer)
        if not is_registered:
            register_svd_parametrization(layer)


@pytest.mark.parametrize("reading", [inverse, lambda layer: solve(layer, torch.ones(2))])
def test_singular_weights(reading):
    layer = nn.Linear(2, 2)
    layer.weight.data = torch.diag(torch.tensor([1.0, 0.0]))
    for is_registered in (False, True):
        with pytest.raises(ValueError, match="^tensor_name: expected an invertible weight, 'weight' is singular"):
            reading(layer)
        if not is_registered:
            register_svd_parametrization(layer)


@pytest.mark.parametrize("is_registered", [True, False])
def test_right_hand_sides_that_do_not_fit(is_registered):
    layer = nn.Linear(3, 3)
    if is_registered:
        register_svd_parametrization(layer)
    for shape in ((), (2,), (2, 3), (3, 2, 3)):
        with pytest.raises(ValueError, match=r"^b: expected \(3,\) or \(…, 3, r\), got"):
            solve(layer, torch.ones(shape))
    for dtype in (torch.float64, torch.int64):
        with pytest.raises(TypeError, match=r"^b: expected a floating dtype no wider than torch.float32, got"):
            solve(layer, torch.ones(3, dtype=dtype))
