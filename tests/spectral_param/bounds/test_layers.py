"""Each kind of layer against the Jacobian of the layer itself, on samples that are drawn."""

import math

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from spectral_param import register_svd_parametrization
from spectral_param.bounds import cell_lipschitz_bound, lipschitz_bound
from tests.spectral_param.bounds.jacobian import jacobian_norm
from tests.spectral_param.functional.convolution.options import convolutions, true_values

MODES = ("zeros", "circular", "reflect", "replicate")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@settings(max_examples=60, deadline=None)
@given(convolutions(MODES))
def test_no_convolution_is_steeper_on_any_image(drawn: tuple[nn.Module, tuple[int, ...]]) -> None:
    conv, image = drawn
    bound = lipschitz_bound(conv).item()
    assert true_values(conv, image)[0].item() <= bound * (1 + 1e-12)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}, {"groups": 2}], ids=str)
def test_a_convolution_on_a_large_image_is_within_a_twentieth(padding_mode: str, options: dict[str, int]) -> None:
    conv = nn.Conv1d(
        4, 6, 3, padding=options.get("dilation", 1), padding_mode=padding_mode, dtype=torch.float64, **options
    )
    if padding_mode == "circular" and "stride" in options:
        pytest.skip("sides that strides do not divide count")
    true = true_values(conv, (200,))[0].item()
    assert 1 <= lipschitz_bound(conv).item() / true <= 1.05


def test_the_operator_of_a_kernel_with_values_of_one_is_not_bounded_by_one() -> None:
    conv = register_svd_parametrization(nn.Conv2d(16, 16, 3, padding=1), init="orthogonal")
    bound = lipschitz_bound(conv).item()
    assert 1.5 < bound < 2.2  # by its kernel alone it was 3
    assert jacobian_norm(conv, torch.randn(16, 6, 6)) <= bound


LAYERS = [
    (nn.LayerNorm(6, eps=1e-2), (6,)),
    (nn.LayerNorm((2, 3), eps=1e-2), (2, 3)),
    (nn.RMSNorm(6, eps=1e-2), (6,)),
    (nn.RMSNorm(6), (6,)),
    (nn.GroupNorm(2, 4, eps=1e-2), (4, 3)),
    (nn.InstanceNorm1d(4, eps=1e-2, affine=True), (4, 3)),
    (nn.InstanceNorm1d(4, track_running_stats=True), (4, 3)),
    (nn.Hardswish(), (5,)),
    (nn.Hardsigmoid(), (5,)),
    (nn.Tanhshrink(), (5,)),
    (nn.Softshrink(), (5,)),
    (nn.RReLU(1.0, 3.0), (5,)),
    (nn.Softmin(-1), (5,)),
    (nn.AlphaDropout(), (5,)),
    (nn.LPPool2d(2, 3, stride=1), (1, 5, 5)),
    (nn.LPPool1d(4, 2), (2, 6)),
    (nn.AdaptiveAvgPool2d(2), (1, 5, 3)),
    (nn.AdaptiveAvgPool2d((7, None)), (1, 3, 2)),
    (nn.AdaptiveMaxPool2d((2, 3)), (1, 5, 5)),
    (nn.AdaptiveMaxPool1d(4), (1, 3)),
    (nn.AvgPool2d(3, 2, 1), (1, 7, 7)),
    (nn.PixelShuffle(2), (4, 3, 3)),
    (nn.PixelUnshuffle(2), (1, 4, 4)),
    (nn.ChannelShuffle(2), (4, 3, 3)),
    (nn.ZeroPad2d(2), (1, 3, 3)),
    (nn.ConstantPad1d(1, 3.0), (1, 3)),
    (nn.ReflectionPad2d((1, 2, 0, 1)), (1, 4, 4)),
    (nn.ReplicationPad2d(2), (1, 3, 3)),
    (nn.CircularPad1d((2, 1)), (1, 3)),
    (nn.UpsamplingNearest2d(scale_factor=2), (1, 3, 3)),
    (nn.Upsample(scale_factor=(2.0, 1.5)), (1, 4, 4)),
    (nn.Upsample(scale_factor=2.0, mode="bilinear"), (1, 4, 4)),
    (nn.Upsample(size=(7, 3), mode="bicubic"), (1, 4, 4)),
    (nn.Upsample(scale_factor=0.5, mode="area"), (1, 4, 4)),
    (nn.UpsamplingBilinear2d(scale_factor=2), (1, 3, 4)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=str)
@pytest.mark.parametrize("radius", [None, 0.0, 0.5])
def test_no_layer_is_steeper_than_its_bound(layer: nn.Module, shape: tuple[int, ...], radius: float | None) -> None:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(shape)
    if radius is None and isinstance(layer, nn.Upsample) and layer.mode != "nearest":
        with pytest.raises(ValueError, match="around="):
            lipschitz_bound(layer)
        return
    dtype = torch.float64 if radius is not None else torch.float32
    ball = {} if radius is None else {"around": x.unsqueeze(0).to(dtype), "radius": radius}
    bound = lipschitz_bound(layer.to(dtype), **ball).item()
    samples = [x]
    for _ in range(5):
        step = torch.randn(shape)
        samples.append(x + step * ((0.99 * radius if radius is not None else 1.0) / step.norm()))
    for sample in samples:
        assert jacobian_norm(layer, sample) <= bound * (1 + 1e-6)


@pytest.mark.parametrize("layer", [nn.LayerNorm(5), nn.RMSNorm(5, eps=1e-5)], ids=str)
def test_a_normalisation_is_as_steep_as_its_eps_lets_it_be(layer: nn.Module) -> None:
    assert lipschitz_bound(layer).item() == pytest.approx(1e-5**-0.5)
    assert jacobian_norm(layer, torch.zeros(5)) == pytest.approx(1e-5**-0.5, rel=1e-6)


def test_embeddings_over_one_hot_words() -> None:
    layer = nn.Embedding(7, 3)
    exact = torch.linalg.matrix_norm(layer.weight.detach(), 2).item()
    assert lipschitz_bound(layer).item() == pytest.approx(exact, rel=1e-6)
    assert lipschitz_bound(nn.EmbeddingBag(7, 3, _weight=layer.weight.detach())).item() == pytest.approx(
        exact, rel=1e-6
    )


# ------------------------------------------------------------------------------------------------------------ attention


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("radius", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("size", [0.3, 2.0])
def test_attention_in_a_ball(bias: bool, radius: float, size: float) -> None:
    layer = nn.MultiheadAttention(6, 2, bias=bias, batch_first=True, dtype=torch.float64)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = size * torch.randn(1, 4, 6, dtype=torch.float64)
    bound = lipschitz_bound(layer, around=x, radius=radius).item()

    def attended(x: Tensor) -> Tensor:
        return layer(x, x, x, need_weights=False)[0]

    for _ in range(5):
        step = torch.randn(x.shape, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(attended, x + radius * step / step.norm())
        assert torch.linalg.matrix_norm(jacobian.reshape(24, 24), 2).item() <= bound


def test_attention_that_is_set_up_otherwise_is_refused() -> None:
    x = torch.randn(1, 3, 4)
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 3, "vdim": 3}):
        with pytest.raises(ValueError, match="module: expected MultiheadAttention of one width"):
            lipschitz_bound(nn.MultiheadAttention(4, 2, **options), around=x, radius=1.0)


@pytest.mark.parametrize(
    ("ball", "match"), [({"radius": 1.0}, "radius"), ({"around": torch.zeros(1, 2), "radius": -1.0}, "radius")]
)
def test_a_ball_without_a_centre_is_refused(ball: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        lipschitz_bound(nn.Linear(2, 2), **ball)


# ---------------------------------------------------------------------------------------------------------------- cells


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("registered", [False, True])
def test_no_step_of_a_cell_is_steeper(kind: type[nn.RNNCellBase], scale: float, registered: bool) -> None:
    cell = kind(3, 4)
    for parameter in cell.parameters():
        nn.init.normal_(parameter, std=scale)
    if registered:
        register_svd_parametrization(cell, "weight_hh")
    bound = cell_lipschitz_bound(cell, memory=2.0).item()
    cell = cell.double()

    def step(x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        if kind is nn.LSTMCell:
            return torch.cat(cell(x, (h, c)))
        return cell(x, h)

    for _ in range(10):
        inputs = torch.randn(3).double(), 2 * torch.rand(4).double() - 1, 4 * torch.rand(4).double() - 2
        jacobian = torch.cat(torch.autograd.functional.jacobian(step, inputs), 1)
        assert torch.linalg.matrix_norm(jacobian, 2).item() <= bound


def test_cells_without_a_bound_say_what_they_need() -> None:
    with pytest.raises(ValueError, match="memory: expected"):
        cell_lipschitz_bound(nn.LSTMCell(2, 2))
    for options in ({"state": -1.0}, {"state": math.inf}, {"memory": math.nan}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}: expected a finite number"):
            cell_lipschitz_bound(nn.GRUCell(2, 2), **options)
    with pytest.raises(TypeError, match="cell: expected"):
        cell_lipschitz_bound(nn.Linear(2, 2))
