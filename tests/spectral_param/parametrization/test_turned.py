"""Weights on a frozen base: where they start, what is trained, what is known of them, what they refuse."""

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from spectral_param import (
    Band,
    Fixed,
    Interval,
    clip_singular_values_,
    inverse,
    load_plain_state_dict,
    log_abs_det,
    parameter_groups,
    pinv,
    plain_state_dict,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
    renormalize_reflectors_,
    safe_globals,
    singular_values,
    solve,
    spectral_penalty,
    spectral_table,
    svd,
    svd_parametrizations,
    together,
    without_adapter,
)


def frozen(module, tensor_name="weight", **settings):
    return register_svd_parametrization(module, tensor_name, base="frozen", **settings)


def moved(module, by=0.1):
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(by * torch.randn_like(parameter))
    return module


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up_proj = nn.Parameter(torch.randn(3, 5, 4))

    def forward(self, x):
        return torch.einsum("eop,np->eno", self.up_proj, x)


CASES = {
    "linear": (lambda: nn.Linear(7, 5), (3, 7)),
    "wide": (lambda: nn.Linear(40, 30), (6, 40)),
    "single": (lambda: nn.Linear(1, 1), (3, 1)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3), (2, 3, 6, 6)),
    "groups": (lambda: nn.Conv2d(4, 8, 3, groups=2), (2, 4, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 3, 3), (2, 4, 5, 5)),
    "embedding": (lambda: nn.Embedding(9, 4), None),
    "lstm": (lambda: nn.LSTM(4, 6), (3, 2, 4)),
    "gru": (lambda: nn.GRU(4, 6), (3, 2, 4)),
    "cell": (lambda: nn.LSTMCell(4, 6), (2, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (3, 2, 8)),
    "experts": (Experts, (2, 4)),
}


def output(module, x):
    result = module(x)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_module_starts_where_it_was_and_says_its_sigma_once_trained(case):
    make, shape = CASES[case]
    torch.manual_seed(0)
    module = make()
    x = torch.arange(9) if shape is None else torch.randn(*shape)
    before = output(module, x).detach()
    report = register_all(module, base="frozen", reflectors=4, rank=3)
    assert report.taken
    assert max(report.changed.values()) < 1e-6
    torch.testing.assert_close(output(module, x), before, atol=2e-6, rtol=1e-6)

    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        (output(module, x) - 0.3).square().mean().backward()
        optimizer.step()
    for name, p in svd_parametrizations(module):
        weight = p.matrices.of(p(*p.factors).detach()).double()
        said = p.sigma.detach().abs().sort(-1, descending=True).values.reshape(p.chunks, -1)
        scale = said.max()
        assert (said - torch.linalg.svdvals(weight)).abs().max() <= 1e-5 * scale, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_base_keeps_its_dtype_and_its_memory(dtype):
    layer = nn.Linear(64, 48, dtype=dtype)
    memory, x = layer.weight.data_ptr(), torch.randn(10, 64, dtype=dtype)
    before, weight = layer(x), layer.weight.detach().clone()
    frozen(layer, reflectors=4, rank=5)
    [(_, p)] = svd_parametrizations(layer)
    assert p.factors[-1].data_ptr() == memory
    trained = {f.dtype for f in p.factors[:-1]}
    assert trained == {torch.float64 if dtype == torch.float64 else torch.float32}
    eps = torch.finfo(dtype).eps
    assert layer(x).dtype == layer.weight.dtype == dtype
    torch.testing.assert_close(layer(x), before, atol=16 * eps, rtol=4 * eps)
    assert (layer.weight - weight).norm() <= 4 * eps * weight.norm()


@pytest.mark.parametrize(("dtype", "off"), [(torch.bfloat16, 1e-3), (torch.float16, 1e-5)])
def test_singular_values_are_those_of_a_weight_that_comes_from_a_file_in_half_precision(dtype, off):
    layer, again = (frozen(nn.Linear(48, 32), reflectors=4, rank=8) for _ in range(2))
    again.load_state_dict({name: tensor.to(dtype) for name, tensor in moved(layer).state_dict().items()})
    exact = torch.linalg.svdvals(again.weight.double())
    torch.testing.assert_close(singular_values(again).double(), exact, rtol=0, atol=off * exact[0].item())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sigma", [None, Band(2.0)])
def test_a_base_is_where_it_starts_in_half_precision_and_from_a_file_of_it(dtype, sigma):
    layer = frozen(nn.Linear(64, 48), rank=8, sigma=sigma)
    state = {name: tensor.to(dtype) for name, tensor in layer.state_dict().items()}
    again = frozen(nn.Linear(64, 48), rank=8, sigma=sigma)
    with torch.inference_mode():
        again.load_state_dict(state)
    base = again.parametrizations.weight[0].base
    torch.testing.assert_close(again.weight, base, rtol=0, atol=1e-6 if sigma is None else 5e-3)
    again(torch.ones(1, 64)).sum().backward()
    if sigma is None:
        layer.to(dtype)
        assert torch.equal(layer.weight, layer.parametrizations.weight[0].base)


def test_triplets_stay_orthonormal_in_a_model_in_half_precision():
    p = frozen(nn.Linear(48, 32), rank=8).bfloat16().parametrizations.weight[0]
    for frame in (p.left, p.right):
        torch.testing.assert_close(frame.mT @ frame, torch.eye(8), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folding_rounds_once(dtype):
    layer = moved(frozen(nn.Linear(32, 24, dtype=dtype), rank=4))
    [(_, p)] = svd_parametrizations(layer)
    exact = frozen(nn.Linear(32, 24, dtype=torch.float64), rank=4)
    [(_, q)] = svd_parametrizations(exact)
    q.load_state_dict({name: t.double() for name, t in p.state_dict().items()})
    for own, other in zip(q.factors, p.factors, strict=True):
        own.data.copy_(other)
    rounding = (exact.weight.to(dtype).float() - exact.weight.float()).abs()
    remove_svd_parametrization(layer)
    assert layer.weight.dtype == dtype
    assert type(layer) is nn.Linear
    difference = (layer.weight.double() - exact.weight).abs()
    assert (difference <= rounding + 1e-6).all()


def test_the_base_is_never_trained_whatever_is_unfrozen():
    layer = frozen(nn.Linear(6, 5), rank=2)
    [(_, p)] = svd_parametrizations(layer)
    base = p.base.clone()
    layer.requires_grad_(True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        layer(torch.randn(4, 6)).square().sum().backward()
        layer.weight.sum().backward()
        optimizer.step()
    assert torch.equal(p.base, base)
    assert p.factors[-1].grad is None


def test_what_is_trained_is_chosen_whatever_the_weight_required():
    expected = {"all": [True, True, True], "sigma": [False, True, False], "reflectors": [True, False, True]}
    for train, trained in expected.items():
        layer = nn.Linear(6, 5).requires_grad_(False)
        frozen(layer, rank=2, train=train)
        [(_, p)] = svd_parametrizations(layer)
        assert [f.requires_grad for f in p.factors] == [*trained, False]


@pytest.mark.parametrize("sigma", [Band(0.1), Interval(0.2, 1.1), Fixed(0.7)])
def test_a_map_holds_the_trained_sigma_and_no_other(sigma):
    layer, start = nn.Linear(8, 8), torch.linspace(1.3, 0.1, 8)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(start))
    with pytest.warns(UserWarning, match="outside its range"):
        frozen(layer, rank=3, sigma=sigma)
    [(_, p)] = svd_parametrizations(layer)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    for _ in range(20):
        layer(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    trained, others = p.sigma.detach().split([3, 5])
    assert (trained >= sigma.low - 1e-6).all()
    assert (trained <= sigma.high + 1e-6).all()
    torch.testing.assert_close(others, start[3:], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(singular_values(layer), torch.linalg.svdvals(layer.weight), atol=1e-5, rtol=1e-5)


def test_its_spectrum_gives_all_that_a_spectrum_gives():
    layer = moved(frozen(nn.Linear(9, 9, dtype=torch.float64), rank=4))
    w = layer.weight.detach()
    u, s, vh = svd(layer)
    torch.testing.assert_close((u * s) @ vh, w)
    torch.testing.assert_close(s, torch.linalg.svdvals(w))
    torch.testing.assert_close(inverse(layer), torch.linalg.inv(w), atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(pinv(layer), torch.linalg.pinv(w), atol=1e-8, rtol=1e-8)
    b = torch.randn(9, 3, dtype=torch.float64)
    torch.testing.assert_close(solve(layer, b), torch.linalg.solve(w, b), atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(log_abs_det(layer), torch.linalg.slogdet(w).logabsdet)
    torch.testing.assert_close(
        spectral_penalty(layer).double(), (torch.linalg.svdvals(w) - 1).square().sum(), rtol=1e-6, atol=0
    )
    [row] = spectral_table(layer)
    assert row["trained"] == 9 * 8 + 4 + 9 * 8


def test_a_rectangular_weight_in_blocks_gives_its_svd():
    cell = moved(frozen(nn.LSTMCell(5, 6, dtype=torch.float64), "weight_ih", chunks=4, rank=2))
    u, s, vh = svd(cell, "weight_ih")
    torch.testing.assert_close((u * s.unsqueeze(-2)) @ vh, cell.weight_ih.reshape(4, 6, 5))
    assert (
        singular_values(cell, "weight_ih") - torch.linalg.svdvals(cell.weight_ih.reshape(4, 6, 5))
    ).abs().max() < 1e-12


def test_with_and_without_the_sum_outputs_and_gradients_agree():
    layer = moved(frozen(nn.Linear(33, 21, dtype=torch.float64), rank=4))
    twin = copy.deepcopy(layer)
    [(_, p)], [(_, q)] = svd_parametrizations(layer), svd_parametrizations(twin)
    p.matrix_free, q.matrix_free = True, False
    x = torch.randn(2, 7, 33, dtype=torch.float64, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    layer(x).square().sum().backward()
    twin(z).square().sum().backward()
    torch.testing.assert_close(x.grad, z.grad)
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_reflectors_and_sigma_pass_gradcheck_through_the_layer():
    layer = moved(frozen(nn.Linear(5, 4, dtype=torch.float64), reflectors=2, rank=2))
    names = [name for name, p in layer.named_parameters() if p.requires_grad]
    trained = [dict(layer.named_parameters())[name].detach().requires_grad_() for name in names]
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, *t: functional_call(layer, dict(zip(names, t, strict=True)), (x,)), (x, *trained)
    )


def test_clipping_moves_the_trained_sigma_and_refuses_what_the_others_forbid():
    layer = frozen(nn.Linear(8, 8), rank=3)
    [(_, p)] = svd_parametrizations(layer)
    top, rest = p.sigma[2].item(), p.sigma[3].item()
    middle = (top + rest) / 2
    clip_singular_values_(layer, max=middle)
    assert torch.linalg.svdvals(layer.weight).max() <= middle + 1e-6
    before = p.sigma.detach().clone()
    with pytest.raises(ValueError, match="rank above 3"):
        clip_singular_values_(layer, max=rest / 2)
    with pytest.raises(ValueError, match="rank above 3"):
        clip_singular_values_(layer, min=rest)
    assert torch.equal(p.sigma, before)


def test_renormalizing_changes_nothing_but_lengths():
    layer = moved(frozen(nn.Linear(8, 6), rank=3), by=1.0)
    before = layer.weight.detach().clone()
    renormalize_reflectors_(layer)
    [(_, p)] = svd_parametrizations(layer)
    torch.testing.assert_close(layer.weight, before)
    torch.testing.assert_close(p.u.norm(dim=0), torch.ones(6))


def test_copies_pickles_and_checkpoints_are_equal_to_the_bit():
    layer = moved(frozen(nn.Linear(8, 6), rank=3))
    x = torch.randn(4, 8)
    singular_values(layer)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    other = frozen(nn.Linear(8, 6), rank=3)
    other.load_state_dict(layer.state_dict())
    with torch.serialization.safe_globals([*safe_globals(), nn.Linear]):
        loaded = torch.load(file, weights_only=True)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), loaded, other):
        assert torch.equal(twin(x), layer(x))
        assert torch.equal(singular_values(twin), singular_values(layer))


def test_a_plain_checkpoint_becomes_the_base():
    layer, plain = moved(frozen(nn.Linear(8, 6), rank=3)), nn.Linear(8, 6)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(4, 8)
    torch.testing.assert_close(layer(x), plain(x), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(singular_values(layer), torch.linalg.svdvals(plain.weight), atol=1e-6, rtol=1e-6)
    [(_, p)] = svd_parametrizations(layer)
    assert torch.equal(p.base, plain.weight)
    torch.testing.assert_close(plain_state_dict(moved(layer))["weight"], layer.weight)


def test_an_assigned_weight_and_a_reset_become_the_base():
    layer, w = moved(frozen(nn.Linear(8, 6), rank=3)), torch.randn(6, 8)
    layer.weight = w
    torch.testing.assert_close(layer.weight, w, atol=1e-6, rtol=1e-6)
    torch.manual_seed(1)
    layer.reset_parameters()
    torch.manual_seed(1)
    plain = nn.Linear(8, 6)
    torch.testing.assert_close(layer.weight, plain.weight, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "write",
    [
        lambda layer, plain: layer.load_state_dict(plain.state_dict()),
        lambda layer, plain: load_plain_state_dict(layer, plain.state_dict()),
        lambda layer, plain: setattr(layer, "weight", plain.weight.detach().clone()),
        lambda layer, plain: layer.reset_parameters(),
    ],
)
def test_a_base_that_was_taken_in_inference_mode_is_trained_on(write):
    layer = frozen(nn.Linear(6, 5), reflectors=2, rank=2)
    x = torch.randn(3, 6)
    with torch.inference_mode():
        write(layer, nn.Linear(6, 5))
    want = nn.functional.linear(x, layer.weight.detach(), layer.bias.detach())
    torch.testing.assert_close(layer(x), want)
    layer(x).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters() if p.requires_grad)
    torch.testing.assert_close(svd(layer)[1], torch.linalg.svdvals(layer.weight))


def test_under_transforms_and_the_compiler_it_is_the_same():
    models = [moved(frozen(nn.Linear(6, 6), rank=2)) for _ in range(3)]
    x = torch.randn(4, 6)
    parameters, buffers = stack_module_state(models)
    outputs = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    torch.testing.assert_close(outputs, torch.stack([model(x) for model in models]))
    compiled = torch.compile(models[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), models[0](x))
    exported = torch.export.export(models[0], (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    more = torch.randn(9, 6)
    torch.testing.assert_close(exported.module()(more), models[0](more))


def test_autocast_gives_what_a_plain_layer_gives():
    layer = moved(frozen(nn.Linear(32, 16), rank=2))
    plain = nn.Linear(32, 16)
    plain.load_state_dict(plain_state_dict(layer))
    x = torch.randn(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        y, expected = layer(x), plain(x)
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, atol=0.03, rtol=0.03)


def test_beside_others_it_goes_its_own_way():
    model = nn.Sequential(*(frozen(nn.Linear(6, 6), rank=2) for _ in range(3)))
    x = torch.randn(4, 6)
    with together(model):
        inside = model(x)
    torch.testing.assert_close(inside, model(x))
    names = [group["name"] for group in parameter_groups(model)]
    assert len([p for g in parameter_groups(model) for p in g["params"]]) == 12
    assert "others" in names


def test_on_the_meta_device_shapes_are_there_and_a_checkpoint_fills_them():
    source = moved(frozen(nn.Linear(8, 6), rank=3))
    with torch.device("meta"):
        layer = frozen(nn.Linear(8, 6), rank=3)
    layer.to_empty(device="cpu").load_state_dict(source.state_dict())
    assert torch.equal(layer.weight, source.weight)


BAD = [
    (dict(base="thawed"), "base: expected None or 'frozen'"),
    (dict(base=None, rank=3), "rank: expected None without base='frozen'"),
    (dict(reflectors=3), "reflectors: expected, with base='frozen', an even number"),
    (dict(reflectors=8), "up to 5 on the left"),
    (dict(reflectors=(2, 2, 2)), "reflectors: expected"),
    (dict(rank=6), "rank: expected a number from 0 to 5, got 6"),
    (dict(rank=-1), "rank: expected a number from 0 to 5"),
    (dict(rank=0, reflectors=0), "train: 'all' leaves nothing to train"),
    (dict(rank=0, train="sigma"), "train: 'sigma' leaves nothing to train"),
    (dict(sigma=Fixed(), train="sigma"), "train: 'sigma' leaves nothing to train"),
    (dict(reflectors=0, train="reflectors"), "train: 'reflectors' leaves nothing to train"),
    (dict(init="orthogonal"), "init: expected 'weight' with base='frozen'"),
    (dict(tensor_name="bias"), "tensor_name: expected a weight of two dimensions"),
]


@pytest.mark.parametrize(("settings", "message"), BAD)
def test_wrong_numbers_are_refused_by_name_and_change_nothing(settings, message):
    layer = nn.Linear(6, 5)
    with pytest.raises(ValueError, match=message):
        register_svd_parametrization(layer, **{"base": "frozen", **settings})
    assert type(layer) is nn.Linear
    assert list(layer._parameters) == ["weight", "bias"]
    assert layer.weight.requires_grad
    with pytest.raises(TypeError, match="rank: expected None or an integer, got float"):
        frozen(layer, rank=2.5)


def test_a_second_registration_and_a_tied_weight_are_refused():
    layer, other = frozen(nn.Linear(6, 5)), nn.Linear(6, 5)
    with pytest.raises(ValueError, match="parametrized already"):
        frozen(layer)
    tied = nn.Linear(6, 5)
    tied.weight = other.weight
    with pytest.raises(ValueError, match="tensor_name"):
        frozen(other)
    assert tied.weight is other.weight


def test_the_default_trains_eight_turns_a_side_and_up_to_32_sigma():
    layer = frozen(nn.Linear(50, 40))
    [(_, p)] = svd_parametrizations(layer)
    assert p.reflectors == (8, 8)
    assert p.rank == 32
    assert math.isclose(sum(f.numel() for f in p.factors if f.requires_grad), 8 * 90 + 32)


def test_a_hook_on_the_weight_sees_the_weight():
    layer = moved(frozen(nn.Linear(40, 30), rank=2))
    seen = []
    layer.parametrizations.weight.register_forward_hook(lambda module, args, w: seen.append(w.detach()))
    x = torch.randn(5, 40)
    y = layer(x)
    torch.testing.assert_close(y, F.linear(x, seen[0], layer.bias))


CONVOLUTIONS = [
    (nn.Conv1d, (6, 8, 3), dict(stride=2, padding=1), (2, 6, 9)),
    (nn.Conv2d, (4, 6, 3), dict(padding=1, padding_mode="circular"), (2, 4, 6, 5)),
    (nn.Conv2d, (4, 8, (3, 2)), dict(groups=2, dilation=2), (2, 4, 8, 7)),
    (nn.Conv2d, (3, 8, 1), dict(bias=False), (3, 5, 5)),
    (nn.Conv3d, (2, 4, 3), dict(padding="same"), (1, 2, 4, 4, 4)),
]


@pytest.mark.parametrize(("kind", "arguments", "settings", "shape"), CONVOLUTIONS)
@pytest.mark.parametrize("chunks", [1, 2])
def test_convolutions_beside_their_base_and_by_the_sum_agree(kind, arguments, settings, shape, chunks):
    conv = moved(frozen(kind(*arguments, **settings, dtype=torch.float64), reflectors=2, rank=2, chunks=chunks))
    twin = copy.deepcopy(conv)
    [(_, p)], [(_, q)] = svd_parametrizations(conv), svd_parametrizations(twin)
    p.matrix_free, q.matrix_free = True, False
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    z = x.detach().clone().requires_grad_()
    y, expected = conv(x), twin(z)
    torch.testing.assert_close(y, expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(x.grad, z.grad)
    for one, other in zip(conv.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    with pytest.raises(RuntimeError):
        conv(torch.randn(2, 2, dtype=torch.float64))


class Conv1D(nn.Module):
    """As in transformers: the weight stands as (in, out)."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, out_features, in_features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


def test_the_layer_of_gpt2_is_applied_beside_its_base():
    layer = moved(frozen(Conv1D(48, 32), rank=2))
    [(_, p)] = svd_parametrizations(layer)
    x = torch.randn(2, 3, 32)
    expected = x @ layer.weight + layer.bias
    torch.testing.assert_close(layer(x), expected)
    p.matrix_free = False
    torch.testing.assert_close(layer(x), expected)


class Rounded(torch.Tensor):
    """Whole numbers and a scale, as quantization keeps a weight: only its product with vectors is there, on itself."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Rounded(inner["codes"], inner["scale"])

    def dequantize(self):
        return self.codes.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.linear:
            return F.linear(args[0], args[1].dequantize(), *args[2:], **(kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.clone.default):
            return Rounded(args[0].codes, args[0].scale)
        raise TypeError(f"{function} of whole numbers")


def quantized():
    layer = nn.Linear(16, 12)
    codes = torch.randint(-127, 128, (12, 16), dtype=torch.int8)
    layer.weight = nn.Parameter(Rounded(codes, torch.tensor(0.01)), requires_grad=False)
    return layer


def test_a_quantized_base_is_used_by_its_own_product():
    layer, x = quantized(), torch.randn(5, 16)
    before, numbers = layer(x), layer.weight.dequantize()
    report = register_all(layer, base="frozen", reflectors=4, rank=3)
    assert list(report.taken) == ["weight"]
    torch.testing.assert_close(layer(x), before, atol=1e-5, rtol=1e-5)
    moved(layer)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(singular_values(layer), torch.linalg.svdvals(layer.weight), atol=1e-4, rtol=1e-5)
    layer(x).square().sum().backward()
    [(_, p)] = svd_parametrizations(layer)
    assert all(factor.grad is not None for factor in p.factors[:-1])
    with without_adapter(layer):
        torch.testing.assert_close(layer.weight, numbers, atol=0, rtol=0)
    with pytest.raises(ValueError, match="the frozen base is quantized"):
        layer.weight = torch.randn(12, 16)
    merged = layer.weight.detach().clone()
    remove_svd_parametrization(layer)
    torch.testing.assert_close(layer.weight.detach(), merged)


def test_a_quantized_weight_is_taken_by_no_other_form():
    layer = quantized()
    with pytest.raises(ValueError, match="is a Rounded, quantized; base='frozen' keeps such a one"):
        register_svd_parametrization(layer)
    assert register_all(layer).passed_over["weight"] == "it is a Rounded"


@pytest.mark.parametrize("make", [lambda: nn.Linear(40, 30), lambda: nn.Conv1d(40, 30, 1), lambda: nn.LSTM(40, 30)])
def test_what_evaluation_keeps_follows_every_write(make):
    module = make().eval()
    register_all(module, base="frozen", reflectors=4, rank=2)
    x = torch.randn(40, 40)
    with torch.no_grad():
        base = output(module, x)
        seen = [base]
        for _ in range(3):
            for _, p in svd_parametrizations(module):
                for factor in p.factors[:-1]:
                    factor.data.add_(0.2 * torch.randn_like(factor))
            fresh = copy.deepcopy(module)
            assert torch.equal(output(module, x), output(fresh, x))
            assert torch.equal(output(module, x), output(fresh, x))
            assert not torch.allclose(output(module, x), seen[-1])
            seen.append(output(module, x))
        with without_adapter(module):
            torch.testing.assert_close(output(module, x), base, atol=1e-5, rtol=1e-5)
        assert torch.equal(output(module, x), seen[-1])


def test_a_base_that_was_written_to_in_place_has_no_known_spectrum():
    layer = frozen(nn.Linear(8, 6), rank=3)
    singular_values(layer)
    layer.parametrizations.weight.original3.data.mul_(2)
    with pytest.raises(ValueError, match="written to in place"):
        singular_values(layer)
    layer.weight = layer.weight.detach()
    torch.testing.assert_close(singular_values(layer), torch.linalg.svdvals(layer.weight), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["left", "start", "right"])
@pytest.mark.parametrize("vectors", [1, 500])
def test_a_write_to_what_is_known_of_the_base_is_seen_in_evaluation(name, vectors):
    layer = moved(frozen(nn.Linear(8, 6), rank=3)).eval()
    [(_, p)] = svd_parametrizations(layer)
    x = torch.randn(vectors, 8)
    with torch.no_grad():
        before = layer(x), layer.weight.clone()
        for write in (lambda buffer: buffer.mul_(2), lambda buffer: buffer.data.mul_(0.25)):
            write(getattr(p, name))
            expected = p(*p.factors)
            assert not torch.allclose(before[1], expected, atol=1e-3)
            torch.testing.assert_close(layer(x), F.linear(x, expected, layer.bias), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.weight, expected)
