import copy
import io
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param import (
    Band,
    Bounded,
    Fixed,
    Interval,
    Positive,
    clip_singular_values_,
    condition_number,
    inverse,
    log_abs_det,
    parameter_groups,
    pinv,
    remove_svd_parametrization,
    renormalize_reflectors_,
    singular_values,
    solve,
    spectral_norm,
    spectral_table,
    svd,
    svd_parametrizations,
    together,
)
from spectral_param.bounds import lipschitz_bound
from spectral_param.nn import SVDConv1d, SVDConv2d, SVDConv3d

KINDS = {1: SVDConv1d, 2: SVDConv2d, 3: SVDConv3d}
PLAIN = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def operator(conv: nn.Module, *sides: int) -> Tensor:
    """The layer without its bias, written out by convolving unit vectors."""
    count = conv.in_channels * math.prod(sides)
    units = torch.eye(count, dtype=conv.weight.dtype).view(count, conv.in_channels, *sides)
    with torch.no_grad():
        return (conv(units) - conv(torch.zeros_like(units[:1]))).flatten(1).mT


def spread(conv: nn.Module) -> None:
    """Moves all raw σ away from their common start."""
    for _, p in svd_parametrizations(conv):
        p.raw_sigma.data.normal_()


def difference(conv: nn.Module, *sides: int) -> float:
    """Between σ of the operator and σ said, each as often as there are places."""
    said = singular_values(conv).detach()
    found = torch.linalg.svdvals(operator(conv, *sides))
    places = math.prod(sides) // math.prod(conv.stride)
    return (found - said.repeat_interleave(places)).abs().max().item()


@st.composite
def layers(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    dimensions = draw(st.sampled_from([1, 2, 2, 3]))
    stride = draw(st.sampled_from([1, 2])) if dimensions < 3 else 1
    taps = draw(st.sampled_from([1, 3, 5] if dimensions < 3 else [1, 3]))
    channels, outputs = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    if channels * stride**dimensions == outputs == 1:
        taps = 1
    most = min(channels * stride**dimensions, outputs)
    conv = KINDS[dimensions](
        channels,
        outputs,
        taps * stride,
        stride,
        reflectors=draw(st.one_of(st.none(), st.integers(1, most))),
        sigma=draw(st.sampled_from([None, Band(0.3), Interval(0.5, 2.0), Positive()])),
        dtype=torch.float64,
    )
    spread(conv)
    least = max(taps // 2, 1)
    sides = tuple(stride * draw(st.integers(least, least + 2)) for _ in range(dimensions))
    return conv, sides


@settings(max_examples=40, deadline=None)
@given(layers())
def test_the_operator_has_the_singular_values_that_are_said(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, sides = drawn
    assert difference(conv, *sides) < 1e-10


@settings(max_examples=25, deadline=None)
@given(layers())
def test_with_zero_padding_the_operator_is_never_above_them(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, sides = drawn
    conv.padding_mode = "zeros"
    assert torch.linalg.svdvals(operator(conv, *sides))[0] <= spectral_norm(conv) + 1e-10


@settings(max_examples=25, deadline=None)
@given(layers())
def test_it_is_torchs_layer_with_the_kernel(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, sides = drawn
    plain = PLAIN[len(sides)](
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,
        conv.stride,
        conv.padding,
        padding_mode="circular",
        dtype=torch.float64,
    )
    plain.load_state_dict({"weight": conv.weight.detach(), "bias": conv.bias.detach()})
    x = torch.randn(2, conv.in_channels, *sides, dtype=torch.float64)
    torch.testing.assert_close(conv(x), plain(x))
    assert type(remove_svd_parametrization(conv)) is KINDS[len(sides)]
    torch.testing.assert_close(conv(x), plain(x))


@pytest.mark.parametrize("sigma", [Band(0.3), Bounded(1.0), None])
def test_sigma_is_that_of_the_operator_after_training_in_float32(sigma: Band | None) -> None:
    model = nn.Sequential(SVDConv2d(3, 8, 3, sigma=sigma), nn.Tanh(), SVDConv2d(8, 16, 6, 2, sigma=sigma))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, target = torch.randn(8, 3, 8, 8), torch.randn(8, 16, 4, 4)
    losses = []
    for _ in range(200):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    for conv in (model[0], model[2]):
        assert difference(conv, 8, 8) < 1e-5


def test_every_factor_has_the_gradient_of_finite_differences() -> None:
    conv = SVDConv2d(2, 3, 3, dtype=torch.float64)
    spread(conv)
    [(_, p)] = svd_parametrizations(conv)
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    names = [f"parametrizations.weight.original{i}" for i in range(len(p.factors))]

    def output(x: Tensor, *factors: Tensor) -> Tensor:
        return torch.func.functional_call(conv, dict(zip(names, factors, strict=True)), x)

    assert torch.autograd.gradcheck(output, (x, *p.factors))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_inverse_gives_the_input_back(dimensions: int, stride: int) -> None:
    channels = 2 * stride**dimensions
    conv = KINDS[dimensions](2, channels, 3 * stride, stride, sigma=Interval(0.3, 2.0))
    spread(conv)
    x = torch.randn(4, 2, *(4 * stride,) * dimensions)
    torch.testing.assert_close(conv.inverse(conv(x)), x, atol=1e-4, rtol=0)
    torch.testing.assert_close(conv.inverse(conv(x[0])), x[0], atol=1e-4, rtol=0)
    without = KINDS[dimensions](2, channels, 3 * stride, stride, bias=False)
    torch.testing.assert_close(without.inverse(without(x)), x, atol=1e-4, rtol=0)


def test_the_inverse_is_differentiable_by_its_factors() -> None:
    conv = SVDConv2d(2, 2, 3, dtype=torch.float64, sigma=Interval(0.3, 2.0))
    y = torch.randn(1, 2, 3, 3, dtype=torch.float64)
    conv.inverse(y).square().sum().backward()
    [(_, p)] = svd_parametrizations(conv)
    assert all(factor.grad is not None and factor.grad.isfinite().all() for factor in p.factors)
    assert p.raw_sigma.grad.abs().max() > 1e-3


@pytest.mark.parametrize("stride", [1, 2])
def test_the_log_determinant_is_that_of_the_operator(stride: int) -> None:
    conv = SVDConv2d(2, 2 * stride**2, 3 * stride, stride, dtype=torch.float64)
    spread(conv)
    torch.testing.assert_close(conv.log_abs_det(4, 6), torch.linalg.slogdet(operator(conv, 4, 6)).logabsdet)
    conv.log_abs_det(4, 6).backward()


def test_sigma_starts_at_the_start_of_its_map() -> None:
    for sigma, start in ((None, 1.0), (Band(0.1, center=0.7), 0.7), (Fixed(0.5), 0.5), (Interval(0.0, 3.0), 1.5)):
        torch.testing.assert_close(singular_values(SVDConv2d(3, 5, 3, sigma=sigma)), torch.full((3,), start))


def test_it_reads_and_edits_as_other_registered_weights_do() -> None:
    conv = SVDConv2d(3, 5, 3, dtype=torch.float64)
    with torch.no_grad():
        [(name, p)] = svd_parametrizations(conv)
        p.raw_sigma.copy_(torch.tensor([3.0, -2.0, 0.1]))
    assert (name, p.shape, round(condition_number(conv).item(), 4)) == ("weight", (5, 3), 30)
    clip_singular_values_(conv, 0.5, 2.5)
    torch.testing.assert_close(singular_values(conv).tolist(), [2.5, 2.0, 0.5])
    assert difference(conv, 4, 4) < 1e-10
    [row] = spectral_table(conv)
    assert (row["shape"], row["max"]) == ((5, 3), 2.5)
    assert row["trained"] == sum(q.numel() for name, q in conv.named_parameters() if name != "bias")


def test_frozen_shifts_in_half_precision_are_widened() -> None:
    conv, x = SVDConv2d(4, 4, 3, train="sigma"), torch.randn(1, 4, 4, 4)
    low = copy.deepcopy(conv).bfloat16()
    torch.testing.assert_close(low(x.bfloat16()).float(), conv(x), atol=0.05, rtol=0.05)
    assert renormalize_reflectors_(low).weight.isfinite().all()


def test_renormalized_reflectors_leave_the_kernel() -> None:
    conv = SVDConv2d(3, 5, 3, dtype=torch.float64)
    before, [(_, p)] = conv.weight.detach().clone(), svd_parametrizations(conv)
    with torch.no_grad():
        for side in p.sides:
            p.factors[side.place].mul_(7.0)
    torch.testing.assert_close(renormalize_reflectors_(conv).weight, before)
    for side in p.sides:
        length = p.factors[side.place].detach().square().sum()
        torch.testing.assert_close(length, torch.tensor(1.0 * side.m * side.blocks).double())


@pytest.mark.parametrize(("train", "trained"), [("sigma", [1]), ("reflectors", [0, 2, 3, 4]), ("all", [0, 1, 2, 3, 4])])
def test_what_is_trained(train: str, trained: list[int]) -> None:
    conv = SVDConv2d(4, 4, 3, train=train, bias=False)
    [(_, p)] = svd_parametrizations(conv)
    assert [i for i, factor in enumerate(p.factors) if factor.requires_grad] == trained
    conv(torch.randn(1, 4, 4, 4)).square().mean().backward()
    assert [i for i, factor in enumerate(p.factors) if factor.grad is not None] == trained


def test_frozen_shifts_that_are_written_to_are_built_anew() -> None:
    conv = SVDConv2d(4, 4, 3, train="sigma")
    before, [(_, p)] = conv.weight.detach().clone(), svd_parametrizations(conv)
    with torch.no_grad():
        p.factors[-1].normal_()
    assert (conv.weight - before).abs().max() > 1e-2
    assert difference(conv, 4, 4) < 1e-5


def test_parameter_groups_have_the_shifts_among_the_reflectors() -> None:
    conv = SVDConv2d(4, 8, 3)
    groups = parameter_groups(conv, lr=1e-3, weight_decay=0.1)
    names = [group["name"] for group in groups]
    assert names == [
        "others",
        "reflectors U weight 8×4",
        "reflectors V weight 8×4",
        "reflectors left shifts weight 8×4",
        "reflectors right shifts weight 8×4",
        "sigma weight 8×4",
    ]
    assert sum(len(group["params"]) for group in groups) == len(list(conv.parameters()))
    assert all(group["weight_decay"] == 0 for group in groups if group["name"].startswith("reflectors"))
    # √(8 · 4 · 9 / 4): a step of the kernel's entries moves it as far as a step of σ
    assert groups[-1]["lr"] == pytest.approx(1.5e-3 * math.sqrt(72))


@pytest.mark.parametrize("kind", ["deepcopy", "pickle", "state_dict", "assign"])
def test_copies_compute_the_same_and_share_nothing(kind: str) -> None:
    conv, x = SVDConv2d(3, 5, 6, 2, sigma=Band(0.2)), torch.randn(2, 3, 8, 8)
    spread(conv)
    if kind == "deepcopy":
        twin = copy.deepcopy(conv)
    elif kind == "pickle":
        twin = pickle.loads(pickle.dumps(conv))
    else:
        buffer = io.BytesIO()
        torch.save(conv.state_dict(), buffer)
        buffer.seek(0)
        device = "meta" if kind == "assign" else "cpu"
        twin = SVDConv2d(3, 5, 6, 2, sigma=Band(0.2), device=device)
        twin.load_state_dict(torch.load(buffer), assign=kind == "assign")
    torch.testing.assert_close(twin(x), conv(x), atol=0, rtol=0)
    expected = conv(x)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(conv(x), expected, atol=0, rtol=0)


def test_in_evaluation_the_kernel_is_kept_until_a_factor_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, x = SVDConv2d(3, 3, 3).eval(), torch.randn(1, 3, 4, 4)
    with torch.no_grad():
        before = conv(x)
        with monkeypatch.context() as patch:
            patch.setattr("spectral_param.parametrization.shifted.shifted_kernel", None)
            torch.testing.assert_close(conv(x), before, atol=0, rtol=0)
        [(_, p)] = svd_parametrizations(conv)
        p.factors[-1].normal_()
        assert (conv(x) - before).abs().max() > 1e-2


def test_reset_parameters_draws_anew() -> None:
    conv = SVDConv2d(4, 4, 3)
    before = [parameter.detach().clone() for parameter in conv.parameters()]
    conv.reset_parameters()
    assert any((a - b).abs().max() > 0.1 for a, b in zip(before, conv.parameters(), strict=True))
    assert difference(conv, 4, 4) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_the_kernel_alone(dtype: torch.dtype) -> None:
    conv, x = SVDConv2d(3, 5, 3), torch.randn(2, 3, 6, 6)
    expected = conv(x)
    low = copy.deepcopy(conv).to(dtype)
    assert low(x.to(dtype)).dtype == dtype
    torch.testing.assert_close(low(x.to(dtype)).float(), expected, atol=0.05, rtol=0.05)
    made = SVDConv2d(3, 5, 3, dtype=dtype)
    assert made.weight.dtype == dtype
    assert {factor.dtype for _, p in svd_parametrizations(made) for factor in p.factors} == {torch.float32}
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(conv.weight, remove_svd_parametrization(copy.deepcopy(conv)).weight)


def test_compiled_it_computes_the_same() -> None:
    conv, x = SVDConv2d(3, 5, 3), torch.randn(2, 3, 6, 6)
    compiled = torch.compile(conv, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), conv(x))
    compiled(x).square().sum().backward()
    found = [parameter.grad.clone() for parameter in conv.parameters()]
    conv.zero_grad()
    conv(x).square().sum().backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in conv.parameters()], atol=1e-4, rtol=1e-4)


def test_transforms_see_through_it() -> None:
    conv, x = SVDConv2d(2, 2, 3, dtype=torch.float64), torch.randn(3, 2, 4, 4, dtype=torch.float64)
    parameters = {name: parameter.detach() for name, parameter in conv.named_parameters()}

    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        return torch.func.functional_call(conv, parameters, one).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    conv(x).square().sum().backward()
    for name, parameter in conv.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad)


def test_within_together_it_goes_its_own_way() -> None:
    model = nn.Sequential(SVDConv2d(3, 3, 3), SVDConv2d(3, 3, 3), SVDConv2d(3, 3, 3))
    x = torch.randn(2, 3, 4, 4)
    expected = model(x)
    with together(model):
        found = model(x)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((0, 2, 3), {}, "in_channels: expected at least 1, got 0"),
        ((2, 0, 3), {}, "out_channels: expected at least 1, got 0"),
        ((2, 2, 0), {}, "kernel_size: expected at least 1, got 0"),
        ((2, 2, 4), {}, "kernel_size: expected an odd number, got 4"),
        ((2, 2, 3, 2), {}, "kernel_size: expected an odd multiple of the stride 2, such as 2 or 6, got 3"),
        ((2, 2, 4, 2), {}, "kernel_size: expected an odd multiple of the stride 2, such as 2 or 6, got 4"),
        ((2, 2, 3, 0), {}, "stride: expected at least 1, got 0"),
        ((1, 1, 3), {}, "kernel_size: expected 1 for one channel to one"),
        ((2, 2, 3), {"padding_mode": "reflect"}, "padding_mode: expected 'circular' or 'zeros', got 'reflect'"),
        ((2, 2, 3), {"train": "bias"}, "train: expected"),
        ((2, 2, 3), {"train": "sigma", "sigma": Fixed()}, "train: 'sigma' leaves nothing"),
        ((2, 2, 3), {"reflectors": 3}, "reflectors: expected"),
        ((2, 3, 3), {"sigma": Bounded(torch.ones(3))}, r"sigma: expected low of shape \(2,\)"),
    ],
)
def test_values_out_of_range(arguments: tuple[int, ...], options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SVDConv2d(*arguments, **options)


def test_values_of_another_type() -> None:
    with pytest.raises(TypeError, match=r"kernel_size: expected an integer, got tuple"):
        SVDConv2d(2, 2, (3, 3))
    with pytest.raises(TypeError, match=r"stride: expected an integer, got float"):
        SVDConv2d(2, 2, 2, 2.0)
    with pytest.raises(TypeError, match=r"sigma: expected a σ map or None, for instance Band\(0\.1\), got float"):
        SVDConv2d(2, 2, 3, sigma=1.0)


def test_images_that_do_not_fit() -> None:
    conv = SVDConv2d(2, 8, 6, 2)
    with pytest.raises(ValueError, match=r"input: expected sides of at least 2, multiples of 2, got \(4, 5\)"):
        conv(torch.randn(1, 2, 4, 5))
    with pytest.raises(ValueError, match=r"input: expected sides of at least 2, got \(1, 4\)"):
        SVDConv2d(2, 2, 5)(torch.randn(1, 2, 1, 4))
    with pytest.raises(ValueError, match=r"output: expected \(N, 8, …\)"):
        conv.inverse(torch.randn(1, 2, 4, 4))
    with pytest.raises(ValueError, match=r"sides: expected 2, got 1"):
        conv.log_abs_det(4)
    with pytest.raises(ValueError, match=r"sides: expected sides of at least 2, multiples of 2, got \(4, 5\)"):
        conv.log_abs_det(4, 5)


def test_transforms_and_half_precision_meet_the_inverse() -> None:
    conv, x = SVDConv2d(2, 2, 3), torch.randn(3, 2, 4, 4)
    each = torch.func.vmap(lambda y: conv.inverse(y))(conv(x))
    torch.testing.assert_close(each, x, atol=1e-4, rtol=0)
    low = copy.deepcopy(conv).bfloat16()
    torch.testing.assert_close(low.inverse(low(x.bfloat16())), x, atol=0.1, rtol=0)


def test_what_cannot_be_inverted() -> None:
    y = torch.randn(1, 2, 4, 4)
    with pytest.raises(ValueError, match="padding_mode='circular', got 'zeros'"):
        SVDConv2d(2, 2, 3, padding_mode="zeros").inverse(y)
    with pytest.raises(ValueError, match=r"in_channels · stride\*\*2 = out_channels, got 3 and 2"):
        SVDConv2d(3, 2, 3).inverse(y)
    with pytest.raises(ValueError, match="a singular operator"):
        SVDConv2d(2, 2, 3, sigma=Fixed(0.0)).inverse(y)
    with pytest.raises(TypeError, match="one that was folded"):
        remove_svd_parametrization(SVDConv2d(2, 2, 3)).log_abs_det(4, 4)


def test_a_kernel_cannot_be_assigned_and_leaves_the_factors_as_they_are() -> None:
    conv = SVDConv2d(2, 2, 3)
    before = conv.weight.detach().clone()
    with pytest.raises(ValueError, match="weight: expected the factors"):
        conv.weight = torch.randn(2, 2, 3, 3)
    with pytest.raises(RuntimeError, match="weight: expected the factors"):
        conv.load_state_dict({"weight": torch.randn(2, 2, 3, 3), "bias": torch.zeros(2)})
    torch.testing.assert_close(conv.weight, before, atol=0, rtol=0)


@pytest.mark.parametrize("function", [svd, inverse, pinv, log_abs_det])
def test_functions_of_matrices_name_what_the_layer_has_instead(function: Callable[[nn.Module], object]) -> None:
    with pytest.raises(ValueError, match=r"tensor_name: expected a matrix.*inverse\(output\)"):
        function(SVDConv2d(2, 2, 3))
    with pytest.raises(ValueError, match="tensor_name: expected a matrix"):
        solve(SVDConv2d(2, 2, 3), torch.ones(2))


def test_under_another_parametrization_its_sigma_are_not_known() -> None:
    conv = SVDConv2d(2, 2, 3)
    parametrize.register_parametrization(conv, "weight", nn.Identity())
    with pytest.raises(ValueError, match="tensor_name: expected the kernel as its factors make it"):
        singular_values(conv)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("arguments", [(3, 8, 3), (1, 16, 5), (16, 16, 7), (2, 8, 6, 2)])
def test_the_lipschitz_bound_is_max_sigma_and_not_below_the_operator(
    arguments: tuple[int, ...], dtype: torch.dtype
) -> None:
    conv = SVDConv2d(*arguments, sigma=Bounded(2.0), dtype=dtype)
    spread(conv)
    exact = copy.deepcopy(conv)
    found = nn.Conv2d(*arguments, padding=exact.padding, padding_mode="circular", dtype=torch.float64)
    found.load_state_dict({"weight": conv.weight.detach(), "bias": conv.bias.detach()})
    true, bound = torch.linalg.svdvals(operator(found, 6, 6))[0], lipschitz_bound(conv)
    assert true <= bound <= spectral_norm(conv).double() * (1 + 200 * torch.finfo(dtype).eps)
    conv.padding_mode = "zeros"
    assert lipschitz_bound(conv) == bound


def test_a_folded_layer_has_the_bound_of_torchs() -> None:
    conv = remove_svd_parametrization(SVDConv2d(2, 2, 3, padding_mode="zeros"))
    plain = nn.Conv2d(2, 2, 3, padding=1)
    plain.load_state_dict(conv.state_dict())
    assert lipschitz_bound(conv) == lipschitz_bound(plain)
    parametrize.register_parametrization(conv, "weight", nn.Identity())
    with pytest.raises(TypeError, match="one that was changed"):
        lipschitz_bound(conv)


def test_a_derived_layer_that_convolves_otherwise_has_no_bound() -> None:
    class Twice(SVDConv2d):
        def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return 2 * super()._conv_forward(input, weight, bias)

    with pytest.raises(TypeError, match="'_conv_forward' that is not"):
        lipschitz_bound(Twice(2, 2, 3))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode calls it
@pytest.mark.parametrize("trained", [True, False])
def test_forward_mode_and_vmap_see_the_shifts(trained):
    conv, x = SVDConv2d(2, 4, 3, dtype=torch.float64), torch.randn(1, 2, 5, 5, dtype=torch.float64)
    numbers = {name: p if trained else p.detach() for name, p in conv.named_parameters()}
    along = {name: torch.randn_like(p) for name, p in numbers.items()}

    def run(numbers):
        return torch.func.functional_call(conv, numbers, (x,))

    with torch.autograd.forward_ad.dual_level():
        duals = {name: torch.autograd.forward_ad.make_dual(p, along[name]) for name, p in numbers.items()}
        tangent = torch.autograd.forward_ad.unpack_dual(run(duals)).tangent
    ahead, behind = ({name: p.detach() + s * along[name] for name, p in numbers.items()} for s in (1e-6, -1e-6))
    torch.testing.assert_close(tangent, (run(ahead) - run(behind)) / 2e-6, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(torch.func.jvp(run, (numbers,), (along,))[1], tangent)
    both = {name: torch.stack([p, p + along[name]]) for name, p in numbers.items()}
    one_by_one = torch.stack([run({name: p[i] for name, p in both.items()}) for i in (0, 1)])
    torch.testing.assert_close(torch.vmap(run)(both), one_by_one)
