"""Networks whose forward is their own, bounded by what it calls, or refused."""

import functools
import random
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer, resnet18
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from spectral_param import register_all
from spectral_param.bounds import lipschitz_bound
from tests.spectral_param.bounds.jacobian import jacobian_norm
from tests.versions import traced_tuples


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def module_of(forward: object, **layers: nn.Module) -> nn.Module:
    """A module of a class of its own with this forward."""
    cls = type("Own", (nn.Module,), {"forward": forward})
    module = cls()
    for name, layer in layers.items():
        module.add_module(name, layer)
    return module


LINEAR = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
KNOWN = [
    (lambda self, x: x + self.a(x), LINEAR),
    (lambda self, x: self.a(x) - self.b(x), LINEAR),
    (lambda self, x: torch.cat([self.a(x), self.b(x), x], -1), LINEAR),
    (lambda self, x: 3 * self.a(x) / 2 - x * 0.5, LINEAR),
    (lambda self, x: -F.relu(self.a(x)) + 1.0, LINEAR),
    (lambda self, x: F.leaky_relu(self.a(x), 2.0), LINEAR),
    (lambda self, x: self.a(x)[..., :2].reshape(-1, 2).flatten(1), LINEAR),
    (lambda self, x: torch.tanh(self.a(x)).mean(-1), LINEAR),
    (lambda self, x, scale=None, flag=True: self.a(x) if flag and scale is None else x, LINEAR),
    (lambda self, x: self.a(x).view(x.shape[0], -1), LINEAR),
    (lambda self, x: torch.ones(4), LINEAR),
    (lambda self, x: F.dropout(self.a(x), 0.5, self.training), LINEAR),
]


@pytest.mark.parametrize(("forward", "layers"), KNOWN)
@pytest.mark.parametrize("with_example", [False, True])
def test_no_forward_of_one_s_own_is_steeper(forward: object, layers: dict[str, nn.Module], with_example: bool) -> None:
    module, x = module_of(forward, **layers).double(), torch.randn(4).double()
    before = set(vars(module)), module.training
    bound = lipschitz_bound(module, around=x.unsqueeze(0) if with_example else None).item()
    assert (set(vars(module)), module.training) == before
    assert jacobian_norm(module, x) <= bound * (1 + 1e-9)


IMAGES = [
    lambda self, x: F.max_pool2d(x, 3, 1),
    lambda self, x: F.avg_pool2d(x, 3, 1, 1),
    lambda self, x: F.adaptive_avg_pool2d(x, (2, 3)),
    lambda self, x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    lambda self, x: x + F.interpolate(self.a(F.max_pool2d(x, 2)), size=x.shape[2:]),
    lambda self, x: F.pixel_shuffle(F.pixel_unshuffle(x, 2), 2),
    lambda self, x: x + self.a(x).mean((2, 3), keepdim=True),
    pytest.param(
        lambda self, x: torch.cat(self.a(x).chunk(2, 1)[::-1], 1) + x[:, :1].expand(-1, 4, -1, -1),
        marks=traced_tuples,
    ),
]


@pytest.mark.parametrize("forward", IMAGES)
def test_no_forward_on_images_is_steeper(forward: object) -> None:
    module, x = module_of(forward, a=nn.Conv2d(4, 4, 3, padding=1)).double(), torch.randn(4, 6, 6).double()
    assert jacobian_norm(module, x) <= lipschitz_bound(module, around=x.unsqueeze(0)).item() * (1 + 1e-9)


def test_a_sum_counts_both_terms() -> None:
    module = module_of(lambda self, x: x + self.a(x), a=nn.Linear(3, 3))
    nn.init.eye_(module.a.weight)
    assert lipschitz_bound(module).item() == pytest.approx(2)


REFUSED = [
    (lambda self, x: x * self.a(x), LINEAR, TypeError, "'mul'"),
    (lambda self, x: 1 / x, LINEAR, TypeError, "'truediv'"),
    (lambda self, x: x @ self.a.weight, LINEAR, TypeError, "'matmul'"),
    (lambda self, x: self.a(x) if x.sum() > 0 else x, LINEAR, TypeError, "torch.fx cannot trace"),
    (lambda self, x, y: x + y, LINEAR, TypeError, "several inputs"),
    (lambda self, x: (x, self.a(x)), LINEAR, TypeError, "returns no single tensor"),
    (lambda self, x: F.dropout(x), LINEAR, TypeError, "'dropout'"),
    (lambda self, x: x + self.a(x), {"a": nn.Linear(4, 1)}, ValueError, "around="),
    (lambda self, x: x + x.mean(-1, keepdim=True), {}, ValueError, "around="),
    (lambda self, x: x + torch.zeros(3, 1), {}, ValueError, "around="),
    (lambda self, x: x.expand(8, 4), {}, TypeError, "'expand'"),
    (lambda self, x: self.a(x).add_(x), {"a": nn.Identity()}, TypeError, "'add_'"),
    (lambda self, x: x + self.a(x), {"a": nn.LeakyReLU(3.0, inplace=True)}, TypeError, "'a'"),
    (lambda self, x: x + F.leaky_relu(x, 3.0, inplace=True), {}, TypeError, "'leaky_relu'"),
    (lambda self, x: torch.div(x, 2, rounding_mode="floor"), {}, TypeError, "'div'"),
    (lambda self, x: x.view(torch.int32), {}, TypeError, "'view'"),
    (lambda self, x: torch.sub(x, self.a(x), alpha=9), LINEAR, TypeError, "'sub'"),
    (lambda self, x: self.a.weight.mul_(2)[0, 0] * x, LINEAR, TypeError, "'mul_'"),
    (lambda self, x: F.max_pool1d(x, 2, return_indices=True)[1], {}, TypeError, "'max_pool1d_with_indices'"),
    (lambda self, x: x[[0, 0]], {}, TypeError, "'getitem'"),
    (lambda self, x: x + F.leaky_relu(x, 3.0, True), {}, TypeError, "'leaky_relu'"),
    (lambda self, x: x + F.leaky_relu(x.view(-1), 3.0, True), {}, TypeError, "'leaky_relu'"),
    (lambda self, x: self.a(x) + self.b(x), {"a": nn.ELU(3.0, True), "b": nn.ReLU()}, TypeError, "'a'"),
    (lambda self, x: x * torch.rand(1), {}, TypeError, "random"),
    (lambda self, x: self.a(x, x, x, attn_mask=x)[0], {"a": nn.MultiheadAttention(4, 2)}, TypeError, "'a'"),
    (lambda self, x: self.a(x, x, x)[1], {"a": nn.MultiheadAttention(4, 2)}, ValueError, "around= and radius="),
]


@pytest.mark.parametrize(("forward", "layers", "error", "match"), REFUSED)
def test_what_is_not_known_is_refused_by_name(
    forward: object, layers: dict[str, nn.Module], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=f"module: .*{match}"):
        lipschitz_bound(module_of(forward, **layers))


def test_what_works_in_place_on_a_value_of_its_own_is_known() -> None:
    steep = nn.LeakyReLU(3.0, inplace=True)
    for module in (
        module_of(lambda self, x: x + self.a(self.b(x)), a=steep, b=nn.Linear(4, 4)),
        module_of(lambda self, x: x + self.a(x), a=nn.Sequential(nn.Linear(4, 4), steep)),
    ):
        x = torch.randn(4).double()
        for ball in ({}, {"around": x.unsqueeze(0)}):
            bound = lipschitz_bound(module.double(), **ball).item()
            assert jacobian_norm(module, x) <= bound * (1 + 1e-9)


def test_a_forward_that_keeps_what_it_sees_leaves_the_module_as_it_was() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        self.seen = x
        return self.a(x)

    module = module_of(forward, a=nn.Linear(2, 2))
    assert lipschitz_bound(module).item() > 0
    assert not hasattr(module, "seen")


def rebinds(self: Any, x: Tensor) -> Tensor:
    self.n = self.n + 1
    return x * min(self.n, 100)


def counts(self: Any, x: Tensor) -> Tensor:
    self.n += 1
    return x * self.n


def lists(self: Any, x: Tensor) -> Tensor:
    self.seen.append(1)
    return x * len(self.seen)


def notes(self: Any, x: Tensor) -> Tensor:
    self.by_name["x"] = 1
    return x * (1 + len(self.by_name))


def comes_first(self: Any, x: Tensor) -> Tensor:
    if self.cache is None:
        self.cache = 0
        return x
    return 10 * x


def asks_by_a_string(self: Any, x: Tensor) -> Tensor:
    if getattr(self, "late", None) is None:
        self.late = 0
        return x
    return 10 * x


def changes_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.c.mul_(2)
    return x * self.c


def assigns_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.c = self.c * 2
    return x * self.c


def writes_out_to_a_buffer(self: Any, x: Tensor) -> Tensor:
    torch.mul(self.c, 2, out=self.c)
    return x * self.c


def changes_a_parameter(self: Any, x: Tensor) -> Tensor:
    F.relu(self.p, inplace=True)
    return x * self.p


def changes_a_tensor(self: Any, x: Tensor) -> Tensor:
    self.t += 1
    return x * self.t


@functools.singledispatch
def by_type(x: Any) -> Any:
    return x


@by_type.register
def _(x: Tensor) -> Tensor:
    return 10 * x


@pytest.mark.parametrize(
    "forward",
    [
        rebinds,
        counts,
        lists,
        notes,
        comes_first,
        asks_by_a_string,
        changes_a_buffer,
        assigns_a_buffer,
        writes_out_to_a_buffer,
        changes_a_parameter,
        changes_a_tensor,
        lambda self, x: by_type(x),
        lambda self, x: x.view(dtype=torch.int64) * 1.0,
    ],
)
def test_what_is_another_at_the_next_call_is_refused_and_left_as_it_was(forward: Any) -> None:
    module = module_of(forward)
    module.register_buffer("c", torch.ones(()))
    module.p, module.t = nn.Parameter(-torch.ones(())), torch.ones(())
    for name, value in {"n": 0, "seen": [3], "by_name": {"a": 1}, "cache": None}.items():
        setattr(module, name, value)
    with pytest.raises(TypeError, match="no Lipschitz bound is known for"):
        lipschitz_bound(module)
    assert (module.n, module.seen, module.by_name, module.cache) == (0, [3], {"a": 1}, None)
    assert (module.c.item(), module.p.item(), module.t.item()) == (1, -1, 1)
    assert not hasattr(module, "late")


def test_buffers_may_be_read_as_numbers() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return x + float(self.alpha) * self.a(x) if self.on.item() else x

    module = module_of(forward, a=nn.Linear(2, 2, bias=False))
    nn.init.eye_(module.a.weight)
    module.register_buffer("alpha", torch.tensor(0.5))
    module.register_buffer("on", torch.tensor(True))
    assert lipschitz_bound(module).item() == pytest.approx(1.5)


def test_a_match_of_types_is_refused() -> None:
    class Matching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            match x:
                case Tensor():
                    return 10 * x
            return x

    with pytest.raises(TypeError, match="another course, since it matches types"):
        lipschitz_bound(Matching())


def test_a_term_that_is_repeated_counts_as_often_as_it_is() -> None:
    module = module_of(lambda self, x: x + self.a(x), a=nn.Linear(16, 1, bias=False))
    nn.init.constant_(module.a.weight, 0.25)
    assert lipschitz_bound(module, around=torch.zeros(1, 16)).item() == pytest.approx(5)
    assert jacobian_norm(module, torch.zeros(16)) == pytest.approx(5)


def test_a_forward_on_the_instance_and_hooks_are_refused() -> None:
    module = module_of(lambda self, x: self.a(x), a=nn.Linear(2, 2))
    hook = module.register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(TypeError, match="Own with forward hooks"):
        lipschitz_bound(module)
    hook.remove()
    module.forward = lambda x: 9 * x
    with pytest.raises(TypeError, match="Own with a 'forward' that is not"):
        lipschitz_bound(module)


# ---------------------------------------------------------------------------------------------------------- torchvision


@pytest.mark.parametrize("block", [BasicBlock(3, 3), BasicBlock(4, 4), Bottleneck(8, 2)], ids=type)
@pytest.mark.parametrize("with_example", [False, True])
def test_blocks_of_torchvision(block: nn.Module, with_example: bool) -> None:
    channels = block.float().train().conv1.in_channels
    for _ in range(3):
        block(torch.randn(4, channels, 5, 5))
    x = torch.randn(channels, 5, 5)
    ball = {"around": x.unsqueeze(0)} if with_example else {}
    bound = lipschitz_bound(block, **ball).item()
    assert jacobian_norm(block, x) <= bound


def test_a_small_residual_network_registered_or_not() -> None:
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)
    for layer in (net.layer3, net.layer4):  # as they are they take a minute
        for name, _ in list(layer.named_children()):
            layer[int(name)] = nn.Identity()
    net.fc = nn.Linear(128, 5)
    net(torch.randn(2, 3, 16, 16))
    x = torch.randn(3, 16, 16)
    plain = lipschitz_bound(net).item()
    assert jacobian_norm(net, x) <= plain
    register_all(net.float())
    assert 0.9 * plain <= lipschitz_bound(net).item() <= 1.1 * plain


def test_resnet_18_has_no_type_error() -> None:
    net = resnet18()
    for module in net.modules():  # thin kernels: what is tested is the graph
        if isinstance(module, nn.Conv2d):
            module.groups = module.in_channels if module.in_channels == module.out_channels else 1
            if module.groups > 1:
                module.weight = nn.Parameter(module.weight.detach()[:, :1])
    plain = lipschitz_bound(net.double()).item()
    assert 0 < plain < float("inf")
    near = lipschitz_bound(net, around=torch.randn(1, 3, 32, 32).double()).item()
    assert 0 < near <= plain * (1 + 1e-9)


def test_a_vision_transformer_without_normalisation_in_a_ball() -> None:
    net = VisionTransformer(16, 8, 2, 2, 8, 16, num_classes=3, norm_layer=lambda width: nn.Identity())
    nn.init.normal_(net.heads[-1].weight)
    x = torch.randn(3, 16, 16)
    with pytest.raises(ValueError, match="around="):
        lipschitz_bound(net)
    bounds = [lipschitz_bound(net, around=x.unsqueeze(0), radius=radius).item() for radius in (0.0, 0.01, 0.1)]
    assert bounds == sorted(bounds)
    assert jacobian_norm(net, x) <= bounds[0]
    step = torch.randn(x.shape)
    assert jacobian_norm(net, x + 0.1 * step / step.norm()) <= bounds[-1]


# ----------------------------------------------------------------------------------- forwards with more than one course


class AsksForTensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return self.proj(x) if isinstance(x, torch.Tensor) else x


class AsksForType(AsksForTensor):
    def forward(self, x):
        return self.proj(x) if type(x) in (torch.Tensor, nn.Parameter) else x


class AsksTorch(AsksForTensor):
    def forward(self, x):
        return self.proj(x) if torch.is_tensor(x) else x


class AsksForTracing(AsksForTensor):
    def forward(self, x):
        return x if torch.fx._symbolic_trace.is_fx_tracing() else self.proj(x)


class Catches(AsksForTensor):
    def forward(self, x):
        try:
            len(x)
        except RuntimeError:
            return x
        return self.proj(x)


class AsksElsewhere(AsksForTensor):
    def forward(self, x):
        return self.proj(x) if _is_one(x) else x


def _is_one(x):
    return isinstance(x, torch.Tensor)


class DrawsLots(nn.Module):
    def forward(self, x):
        return x * random.choice([1, 100])


class DrawsNumPysLots(nn.Module):
    def forward(self, x):
        return x * float(numpy.random.rand())


@pytest.mark.parametrize(
    "cls",
    [AsksForTensor, AsksForType, AsksTorch, AsksForTracing, Catches, AsksElsewhere, DrawsLots, DrawsNumPysLots],
)
def test_a_forward_that_may_have_another_course_than_the_traced_one_is_refused(cls):
    with pytest.raises(TypeError, match="another course|draws random numbers"):
        lipschitz_bound(cls())


class InPlace(nn.Module):
    def forward(self, x):
        return F.hardswish(x, inplace=True)


class AddsWithFactor(nn.Module):
    def forward(self, x):
        return torch.add(x, 5, x)


class SubtractsWithFactor(nn.Module):
    def forward(self, x):
        return x.sub(5, x)


class JoinsByName(nn.Module):
    def forward(self, x):
        return torch.cat(tensors=[x, x])


@pytest.mark.parametrize("cls", [InPlace, AddsWithFactor, SubtractsWithFactor, JoinsByName])
@pytest.mark.filterwarnings("ignore:This overload of:UserWarning")  # the old way of writing is what is asked about
def test_what_writes_to_its_input_untold_or_is_written_in_an_old_way_is_refused(cls):
    with pytest.raises(TypeError, match="no Lipschitz bound is known for"):
        lipschitz_bound(cls())


class AddsToInput(nn.Module):
    def forward(self, x):
        x += 1 * x
        return x


class AddsToWhatIsReadAgain(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = AddsToInput()

    def forward(self, x):
        return x + self.part(x)


def test_a_part_that_writes_to_its_input_is_refused_within_another():
    with pytest.raises(TypeError, match="no Lipschitz bound is known for"):
        lipschitz_bound(AddsToWhatIsReadAgain())


class MeanOfSamples(nn.Module):
    def forward(self, x):
        return x.mean(0)


def test_a_mean_over_samples_gains_nothing():
    assert lipschitz_bound(MeanOfSamples(), around=torch.ones(4, 4)).item() == 1


class TwoPools(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.MaxPool2d(2, 3, 0, ceil_mode=True), nn.MaxPool2d(4, 3, 1, ceil_mode=True)

    def forward(self, x):
        return 10 * self.one(x) + self.other(x)


def test_pools_that_round_up_are_of_one_shape_only_with_one_padding():
    with pytest.raises(ValueError, match="expected around="):
        lipschitz_bound(TwoPools())
