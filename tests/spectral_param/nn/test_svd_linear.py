import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from spectral_param import (
    Band,
    Fixed,
    SigmaMap,
    clip_singular_values_,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    spectral_norm,
    svd_parametrizations,
)
from spectral_param.functional.factorization import svd_weight
from spectral_param.functional.ways import Way
from spectral_param.nn import SVDLinear
from spectral_param.sizes import packed_size

SHAPES = [(5, 3), (3, 5), (4, 4), (1, 6), (6, 1), (1, 1)]  # in_features, out_features
BATCHES = [(), (2,), (2, 3), (0,), (2, 0)]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def twin(layer: SVDLinear) -> nn.Linear:
    """A plain layer that holds the same W, and gets it from nowhere but the attribute."""
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None).to(layer.weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(layer.weight)
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
    return plain


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("bias", [True, False])
def test_output_is_that_of_linear(dtype: torch.dtype, batch: tuple[int, ...], bias: bool) -> None:
    for q, p in SHAPES:
        layer = SVDLinear(q, p, bias, dtype=dtype)
        x = torch.randn(*batch, q, dtype=dtype)
        torch.testing.assert_close(layer(x), twin(layer)(x), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("reflectors", [None, 1, (0, 2), (3, 0)])
@pytest.mark.parametrize("sigma", [None, Band(0.3), Fixed(0.5)])
def test_every_kind_of_factors(reflectors: int | tuple[int, int] | None, sigma: SigmaMap | None) -> None:
    layer = SVDLinear(5, 3, dtype=torch.float64, reflectors=reflectors, sigma=sigma)
    x = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), twin(layer)(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_are_those_of_linear_through_the_parametrization(shape: tuple[int, int], dtype: torch.dtype) -> None:
    layer = SVDLinear(*shape, dtype=dtype)
    plain = twin(layer)
    x = torch.randn(4, 3, shape[0], dtype=dtype, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    cotangent = torch.randn(4, 3, shape[1], dtype=dtype)
    layer(x).backward(cotangent)
    plain(y).backward(cotangent)
    (_, parametrization), *_ = svd_parametrizations(layer)
    factors = parametrization.factors
    found = [factor.grad for factor in factors]
    expected = torch.autograd.grad(parametrization(*factors), factors, plain.weight.grad)
    tolerance = {"atol": 10 * TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    torch.testing.assert_close(x.grad, y.grad, **tolerance)
    torch.testing.assert_close(layer.bias.grad, plain.bias.grad, **tolerance)
    torch.testing.assert_close(found, list(expected), **tolerance)


def test_gradients_in_bfloat16_are_near_those_in_float32() -> None:
    layer = SVDLinear(5, 3)
    low = copy.deepcopy(layer).bfloat16()
    x = torch.randn(6, 5)
    layer(x).square().sum().backward()
    low(x.bfloat16()).square().sum().backward()
    for exact, near in zip(layer.parameters(), low.parameters(), strict=True):
        assert near.grad is not None
        assert exact.grad is not None
        assert near.grad.dtype == torch.bfloat16
        torch.testing.assert_close(near.grad.float(), exact.grad, atol=0.3, rtol=0.1)


def test_the_weight_is_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = SVDLinear(5, 3)

    def refuse(*_: Tensor) -> Tensor:
        raise AssertionError("W was built")

    monkeypatch.setattr("spectral_param.parametrization.svd.build", refuse)
    layer(torch.randn(2, 5)).sum().backward()
    with pytest.raises(AssertionError, match="W was built"):
        _ = layer.weight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_under_autocast_only_the_result_is_rounded(dtype: torch.dtype, given: torch.dtype) -> None:
    layer = SVDLinear(50, 40)
    x = torch.randn(8, 50).to(given)
    exact = layer(x.float())
    with torch.autocast("cpu", dtype):
        found = layer(x)
        assert found.dtype == twin(layer)(x).dtype
    torch.testing.assert_close(found, exact.to(dtype), atol=0, rtol=0)
    found.float().sum().backward()


def test_autocast_leaves_float64_alone() -> None:
    layer = SVDLinear(5, 3, dtype=torch.float64)
    x = torch.randn(2, 5, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


def test_wrong_inputs() -> None:
    layer = SVDLinear(5, 3)
    with pytest.raises(TypeError, match=r"input: .*torch.float32, got torch.float64"):
        layer(torch.randn(2, 5, dtype=torch.float64))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match=r"input: .*got torch.int64"):
        layer(torch.ones(2, 5, dtype=torch.int64))
    for shape in ((2, 4), ()):
        with pytest.raises(ValueError, match="input: expected"):
            layer(torch.randn(shape))


def test_constructor() -> None:
    band = SVDLinear(9, 7, reflectors=(3, 2), sigma=Band(0.1))
    assert sum(p.numel() for p in band.parameters()) == packed_size(7, 3) + packed_size(9, 2) + 7 + 7
    torch.testing.assert_close(singular_values(band), torch.ones(7))
    torch.manual_seed(0)
    drawn = SVDLinear(9, 7, init="weight")
    torch.manual_seed(0)
    torch.testing.assert_close(drawn.weight, nn.Linear(9, 7).weight)
    with pytest.raises(ValueError, match="reflectors"):
        SVDLinear(9, 7, reflectors=8)
    with pytest.raises(ValueError, match="init"):
        SVDLinear(9, 7, init="zeros")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_from_linear_and_back(shape: tuple[int, int], dtype: torch.dtype) -> None:
    plain = nn.Linear(*shape, dtype=dtype).eval()
    layer = SVDLinear.from_linear(plain)
    again = layer.to_linear()
    x = torch.randn(4, shape[0], dtype=dtype)
    assert not layer.training
    assert not again.training
    assert type(again) is nn.Linear
    torch.testing.assert_close(layer(x), plain(x))
    torch.testing.assert_close(again(x), plain(x))
    for copied in (layer, again):
        with torch.no_grad():
            copied.bias.zero_()
    assert plain.bias.abs().sum() > 0


def test_from_linear_keeps_the_leading_triplets() -> None:
    plain = nn.Linear(6, 6)
    with torch.no_grad():
        plain.weight.copy_(torch.diag(torch.tensor([9.0, 4.0, 0.01, 0.01, 0.01, 0.01]))[torch.randperm(6)])
    with pytest.warns(UserWarning, match="too little"):
        layer = SVDLinear.from_linear(plain, reflectors=2)
    torch.testing.assert_close(singular_values(layer)[:2], torch.tensor([9.0, 4.0]))
    with pytest.warns(UserWarning, match="outside its range"):
        held = SVDLinear.from_linear(plain, sigma=Band(0.5, center=1.0))
    assert spectral_norm(held) <= 1.5


def test_from_linear_keeps_what_is_frozen() -> None:
    plain = nn.Linear(4, 3)
    plain.weight.requires_grad_(False)
    layer = SVDLinear.from_linear(plain)
    assert [name for name, p in layer.named_parameters() if p.requires_grad] == ["bias"]
    again = layer.to_linear()
    assert not again.weight.requires_grad
    assert again.bias.requires_grad


def test_sigma_alone_is_trained_around_turns_that_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, x = nn.Linear(6, 4), torch.randn(3, 6)
    layer = SVDLinear.from_linear(plain, train="sigma")
    assert [p.requires_grad for name, p in layer.named_parameters() if "original" in name] == [False, True, False]
    torch.testing.assert_close(layer(x), plain(x))
    full = SVDLinear.from_linear(plain)
    for each in (layer, full):
        each(x).square().sum().backward()
    sigma = "parametrizations.weight.original1"
    torch.testing.assert_close(layer.get_parameter(sigma).grad, full.get_parameter(sigma).grad)

    def refuse(*_: Tensor) -> Tensor:
        raise AssertionError("U or V was applied reflector by reflector")

    monkeypatch.setattr("spectral_param.functional.ways.svd_product", refuse)
    layer(x)


def test_from_a_registered_linear() -> None:
    plain = register_svd_parametrization(nn.Linear(4, 3))
    assert isinstance(plain, nn.Linear)
    layer = SVDLinear.from_linear(plain)
    torch.testing.assert_close(layer.weight, plain.weight)
    assert all(p.requires_grad for p in layer.parameters())
    with pytest.raises(TypeError, match="linear: expected a torch.nn.Linear, got Conv1d"):
        SVDLinear.from_linear(nn.Conv1d(1, 1, 1))  # type: ignore[arg-type]  # the point of the test


def test_from_linear_draws_no_random_numbers() -> None:
    plain = nn.Linear(4, 3)
    before = torch.get_rng_state()
    SVDLinear.from_linear(plain).to_linear()
    assert torch.equal(torch.get_rng_state(), before)


def test_read_outs_and_editing() -> None:
    layer = SVDLinear.from_linear(nn.Linear(6, 4))
    torch.testing.assert_close(singular_values(layer), torch.linalg.svdvals(layer.weight))
    torch.testing.assert_close(spectral_norm(layer), torch.linalg.matrix_norm(layer.weight, 2))
    assert [name for name, _ in svd_parametrizations(nn.Sequential(layer))] == ["0.weight"]
    clip_singular_values_(layer, 0.5, 0.6)
    assert torch.linalg.svdvals(layer.weight).min() >= 0.5 - 1e-6
    layer.weight = torch.ones(4, 6)
    x = torch.randn(3, 6)
    torch.testing.assert_close(layer(x), x.sum(-1, keepdim=True) + layer.bias)


def test_copies_pickles_and_checkpoints() -> None:
    layer, x = SVDLinear(6, 4, reflectors=2), torch.randn(3, 6)
    layer(x).sum().backward()
    other = SVDLinear(6, 4, reflectors=2)
    other.load_state_dict(layer.state_dict())
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        torch.testing.assert_close(same(x), layer(x))
        remove_svd_parametrization(same)
    assert parametrize.is_parametrized(layer)


def test_folded_back_or_under_another_parametrization_it_is_linear() -> None:
    layer, x = SVDLinear(6, 4), torch.randn(3, 6)
    before = layer(x)

    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    doubled = copy.deepcopy(layer)
    parametrize.register_parametrization(doubled, "weight", Double())
    torch.testing.assert_close(doubled(x), F.linear(x, 2 * layer.weight, layer.bias))
    assert type(remove_svd_parametrization(layer)) is SVDLinear
    assert isinstance(layer.weight, nn.Parameter)
    torch.testing.assert_close(layer(x), before)


def test_reset_parameters_draws_anew() -> None:
    layer = SVDLinear(6, 4, sigma=Band(0.1))
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert (layer.weight - before).abs().max() > 0.01
    torch.testing.assert_close(singular_values(layer), torch.ones(4))


def test_functional_transforms() -> None:
    layer, x = SVDLinear(5, 3, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(len(x)):
        layer.zero_grad()
        layer(x[i]).square().sum().backward()
        for name, p in layer.named_parameters():
            torch.testing.assert_close(each[name][i], p.grad)


def test_gradients_of_both_orders() -> None:
    layer = SVDLinear(3, 2, dtype=torch.float64)
    names, factors = zip(*layer.named_parameters(), strict=True)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)

    def forward(x: Tensor, *factors: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, factors, strict=True)), (x,))

    assert torch.autograd.gradcheck(forward, (x, *factors))
    assert torch.autograd.gradgradcheck(forward, (x, *factors))


def test_compiled_in_one_graph() -> None:
    layer, x = SVDLinear(6, 4), torch.randn(3, 6)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_output_is_contiguous() -> None:
    assert SVDLinear(6, 4)(torch.randn(2, 3, 6)).is_contiguous()
    assert SVDLinear(6, 4, bias=False)(torch.randn(2, 3, 6)).is_contiguous()


def test_product_of_chunks_is_that_of_the_weight() -> None:
    layer = register_svd_parametrization(nn.Linear(3, 8, dtype=torch.float64), chunks=4)
    (_, parametrization), *_ = svd_parametrizations(layer)
    x = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(parametrization.product(x, Way.REFLECTORS), x @ layer.weight.mT)
    assert svd_weight(*parametrization.svd).shape == (4, 2, 3)
