import math

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from spectral_param import Band, Fixed, register_svd_parametrization
from spectral_param.bounds import lipschitz_bound
from spectral_param.nn import Residual, SpectralRNN, SVDLinear
from tests.spectral_param.bounds.jacobian import jacobian_norm


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_a_stack_of_linear_layers() -> None:
    layers = [nn.Linear(6, 9), SVDLinear(9, 5), register_svd_parametrization(nn.Linear(5, 4)), nn.Linear(4, 4, False)]
    expected = math.prod(torch.linalg.svdvals(layer.weight.detach())[0].item() for layer in layers)
    model = nn.Sequential(*layers[:2], nn.Sequential(*layers[2:]), nn.Identity())
    assert lipschitz_bound(model).item() == pytest.approx(expected, rel=1e-5)
    assert jacobian_norm(model, torch.randn(6)) <= expected


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(1.5), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.ELU(2.0)])
def test_no_point_of_a_network_is_steeper(activation: nn.Module) -> None:
    block = Residual(SVDLinear(8, 8, sigma=Band(0.5)), activation, nn.Linear(8, 8))
    model = nn.Sequential(nn.Linear(5, 8), block, activation, nn.Dropout(0.5), nn.Linear(8, 3))
    bound = lipschitz_bound(model).item()
    for _ in range(10):
        assert jacobian_norm(model, 3 * torch.randn(5)) <= bound


def test_a_residual_block_that_reaches_its_bound() -> None:
    linear = nn.Linear(3, 3)
    linear.weight.data = torch.diag(torch.tensor([2.0, -1.0, 0.5]))
    block = Residual(linear)
    assert lipschitz_bound(block).item() == pytest.approx(3.0)
    assert jacobian_norm(block, torch.zeros(3)) == pytest.approx(3.0)


ACTIVATIONS = [
    nn.Identity(),
    nn.ReLU(),
    nn.ReLU6(),
    nn.LeakyReLU(0.2),
    nn.LeakyReLU(-1.5),
    nn.CELU(0.5),
    nn.ELU(0.5),
    nn.ELU(3.0),
    nn.Tanh(),
    nn.Hardtanh(),
    nn.Softplus(2.0),
    nn.Softsign(),
    nn.LogSigmoid(),
    nn.Sigmoid(),
    nn.Mish(),
    nn.SiLU(),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SELU(),
    nn.PReLU(init=0.25),
    nn.PReLU(init=-2.0),
]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_constants_are_the_greatest_slopes(activation: nn.Module) -> None:
    x = torch.linspace(-20, 20, 400_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation.double()(x).sum(), x)
    bound = lipschitz_bound(activation).item()
    assert 0.99 * bound <= slope.abs().max().item() <= bound


def test_softmax_at_its_steepest() -> None:
    assert jacobian_norm(nn.Softmax(-1), torch.tensor([0.0, 0.0, -50.0])) == pytest.approx(0.5)
    assert lipschitz_bound(nn.Softmax(-1)).item() == 0.5


# ---------------------------------------------------------------------------------------------- convolution and pooling

CONVOLUTIONS = [
    (nn.Conv1d(3, 4, 5, padding=2), (3, 12)),
    (nn.Conv2d(2, 3, 3), (2, 7, 7)),
    (nn.Conv2d(2, 3, 3, padding=1), (2, 6, 6)),
    (nn.Conv2d(2, 3, 3, stride=2), (2, 7, 7)),
    (nn.Conv2d(2, 3, 3, stride=2, dilation=2), (2, 9, 9)),
    (nn.Conv2d(2, 3, (3, 1), stride=(2, 3), dilation=(3, 1), padding="valid"), (2, 9, 7)),
    (nn.Conv2d(4, 6, 3, groups=2), (4, 5, 5)),
    (nn.Conv2d(4, 4, 3, groups=4, padding="same"), (4, 5, 5)),
    (nn.Conv3d(1, 2, 2), (1, 4, 4, 4)),
    (nn.ConvTranspose1d(3, 4, 5, stride=2), (3, 6)),
    (nn.ConvTranspose2d(2, 3, 3), (2, 5, 5)),
    (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (4, 4, 4)),
]


@pytest.mark.parametrize(("convolution", "shape"), CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("chunks", [None, 1, "groups"])
def test_convolutions_lie_below_and_within_the_root_of_a_window(
    convolution: nn.Module, shape: tuple[int, ...], chunks: int | str | None
) -> None:
    layer = type(convolution)(
        *(getattr(convolution, name) for name in ("in_channels", "out_channels", "kernel_size", "stride")),
        padding=convolution.padding,
        dilation=convolution.dilation,
        groups=convolution.groups,
    )
    if chunks is not None:
        register_svd_parametrization(layer, chunks=layer.groups if chunks == "groups" else 1)
    bound = lipschitz_bound(layer).item()
    exact = jacobian_norm(layer, torch.randn(shape))
    assert exact <= bound * (1 + 1e-6)
    assert bound <= exact * math.sqrt(math.prod(layer.kernel_size) * layer.groups) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 5, 1), (3, 4, 4)),
        (nn.Conv2d(3, 5, 4, stride=4), (3, 8, 8)),
        (nn.Conv1d(3, 5, 2, stride=3), (3, 9)),
        (nn.Conv2d(3, 5, 2, stride=2, dilation=1), (3, 6, 6)),
    ],
    ids=str,
)
def test_windows_that_do_not_overlap_are_exact(layer: nn.Module, shape: tuple[int, ...]) -> None:
    assert lipschitz_bound(layer).item() == pytest.approx(jacobian_norm(layer, torch.randn(shape)), rel=1e-5)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.MaxPool1d(3, 2, 1), (2, 9)),
        (nn.MaxPool2d(2), (2, 6, 6)),
        (nn.MaxPool2d((3, 2), stride=1, dilation=(1, 2)), (1, 7, 7)),
        (nn.MaxPool3d(2, 1), (1, 4, 4, 4)),
        (nn.AvgPool1d(3, 1, 1), (2, 8)),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False, ceil_mode=True), (1, 6, 6)),
        (nn.AvgPool2d(2, divisor_override=1), (1, 4, 4)),
        (nn.AvgPool3d(2), (1, 4, 4, 4)),
        (nn.AdaptiveAvgPool1d(1), (2, 5)),
        (nn.AdaptiveAvgPool2d((1, 1)), (2, 5, 4)),
    ],
    ids=str,
)
def test_pooling(layer: nn.Module, shape: tuple[int, ...]) -> None:
    bound = lipschitz_bound(layer).item()
    for _ in range(3):
        assert jacobian_norm(layer, torch.randn(shape)) <= bound * (1 + 1e-12)


def test_max_pooling_can_reach_its_bound() -> None:
    peak = torch.zeros(1, 5, 5)
    peak[0, 2, 2] = 1.0
    layer = nn.MaxPool2d(3, stride=1)
    assert jacobian_norm(layer, peak) == pytest.approx(lipschitz_bound(layer).item()) == 3.0


@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalisation_by_its_running_statistics(affine: bool) -> None:
    layer = nn.BatchNorm2d(3, affine=affine)
    for _ in range(5):
        layer(torch.tensor([0.1, 1.0, 5.0]).view(1, 3, 1, 1) * torch.randn(8, 3, 4, 4))
    if affine:
        layer.weight.data = torch.tensor([1.0, -30.0, 1.0])
    assert lipschitz_bound(layer).item() == pytest.approx(jacobian_norm(layer, torch.randn(3, 2, 2)), rel=1e-5)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalisation_of_a_small_variance_is_held_by_eps(affine: bool) -> None:
    layer = nn.BatchNorm1d(2, affine=affine)  # eps is 1e-5
    layer.running_var = torch.tensor([1e-5, 3.0])
    assert lipschitz_bound(layer).item() == pytest.approx(2e-5**-0.5, rel=1e-5)  # 224, and 316 without eps
    assert jacobian_norm(layer, torch.randn(2)) == pytest.approx(2e-5**-0.5, rel=1e-5)


def test_a_flag_that_says_otherwise_does_not_hide_the_scale_of_a_normalisation() -> None:
    layer = nn.BatchNorm1d(2)
    layer.weight.data.fill_(5.0)
    layer.affine = False  # which its forward does not look at
    assert lipschitz_bound(layer).item() == pytest.approx(5, rel=1e-4)


@pytest.mark.parametrize("transposed", [False, True])
def test_chunks_that_are_not_groups_act_on_the_same_pixels(transposed: bool) -> None:
    layer = nn.ConvTranspose1d(4, 2, 1, bias=False) if transposed else nn.Conv1d(2, 4, 1, bias=False)
    block = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    layer.weight.data = torch.cat([block, block]).unsqueeze(-1)
    exact = jacobian_norm(layer, torch.randn(4 if transposed else 2, 3))
    assert exact == pytest.approx(4 * math.sqrt(2))
    register_svd_parametrization(layer, chunks=2)
    assert lipschitz_bound(layer).item() == pytest.approx(exact, rel=1e-5)


def test_chunks_that_are_groups_act_on_pixels_of_their_own() -> None:
    layer = nn.Conv1d(4, 4, 1, groups=2, bias=False)
    layer.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0], [1.0, 0.0], [0.0, 4.0]]).unsqueeze(-1)
    register_svd_parametrization(layer, chunks=2)
    assert lipschitz_bound(layer).item() == pytest.approx(4, rel=1e-5)


def test_a_derived_class_without_a_forward_pools_as_its_base_does() -> None:
    class Pool(nn.MaxPool2d):
        pass

    assert lipschitz_bound(Pool(3, 1)).item() == 3.0


def test_the_norm_of_a_complex_weight_has_its_imaginary_part() -> None:
    layer = nn.Linear(1, 1, dtype=torch.complex64)
    layer.weight.data.fill_(3 + 4j)
    assert lipschitz_bound(layer).item() == pytest.approx(5)


@pytest.mark.parametrize("activation", [nn.ELU(3.0, inplace=True), nn.LeakyReLU(5.0, inplace=True)], ids=repr)
def test_a_block_that_works_in_place_adds_to_its_input(activation: nn.Module) -> None:
    block = Residual(activation, nn.Linear(1, 1, bias=False))
    block[1].weight.data.fill_(1.0)
    x = torch.tensor([[-0.001, -0.002]]).mT
    slope = ((block(x.clone())[0] - block(x.clone())[1]) / 0.001).item()
    assert slope == pytest.approx(1 + lipschitz_bound(activation).item(), rel=0.01)
    assert slope <= lipschitz_bound(block).item() * (1 + 1e-5)


@pytest.mark.parametrize("divisor", [1, -1, 100])
def test_a_divisor_below_zero_makes_no_bound_below_zero(divisor: int) -> None:
    layer = nn.AvgPool2d(2, divisor_override=divisor)
    assert jacobian_norm(layer, torch.randn(1, 4, 4)) <= lipschitz_bound(layer).item()


# --------------------------------------------------------------------------------------------------------------- users


def test_a_block_of_torchvision_given_a_bound() -> None:
    @lipschitz_bound.register
    def _(block: BasicBlock) -> Tensor:
        return 1 + lipschitz_bound(nn.Sequential(block.conv1, block.bn1, block.relu, block.conv2, block.bn2))

    block = BasicBlock(3, 3)
    register_svd_parametrization(block.conv1)
    for _ in range(3):
        block(torch.randn(4, 3, 5, 5))
    assert jacobian_norm(block, torch.randn(3, 5, 5)) <= lipschitz_bound(nn.Sequential(block)).item()


def test_gradients_reach_sigma_and_plain_weights() -> None:
    model = nn.Sequential(SVDLinear(4, 4, sigma=Band(0.5)), nn.ReLU(), nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2))
    lipschitz_bound(model).backward()
    assert model[0].parametrizations["weight"].original1.grad.abs().sum() > 0
    assert model[2].weight.grad.abs().sum() > 0
    assert model[3].weight.grad.abs().sum() > 0


def test_registered_weights_need_no_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(SVDLinear(4, 4), register_svd_parametrization(nn.Conv2d(1, 2, 3)))

    def refuse(*_: Tensor) -> Tensor:
        raise AssertionError("decomposed")

    monkeypatch.setattr(torch.linalg, "svdvals", refuse)
    assert lipschitz_bound(model).item() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_result_is_float64(dtype: torch.dtype) -> None:
    many = nn.Sequential(*(SVDLinear(2, 2, sigma=Fixed(10.0), dtype=dtype) for _ in range(60)))
    bound = lipschitz_bound(many)
    assert bound.dtype == torch.float64
    assert bound.item() == pytest.approx(1e60, rel=1e-4)  # each of the 60 is rounded up by an ε of its factors
    assert bound.item() >= 1e60


def test_chunks_are_bounded_together() -> None:
    layer = register_svd_parametrization(nn.Linear(3, 8), chunks=4)
    whole = torch.linalg.svdvals(layer.weight.detach())[0].item()
    assert whole <= lipschitz_bound(layer).item() <= 2 * whole


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (
            nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2, eps=0)),
            ValueError,
            "module: expected LayerNorm .* eps above 0",
        ),
        (nn.Sequential(nn.Linear(2, 2), nn.LocalResponseNorm(2)), TypeError, "module: no Lips.* LocalResponseNorm"),
        (SpectralRNN(2, 2), TypeError, "SpectralRNN"),
        (nn.BatchNorm1d(2, track_running_stats=False), ValueError, "module: expected running statistics"),
        (nn.CELU(-1.0), ValueError, "module: expected CELU with an alpha above 0, got -1.0"),
        (nn.Softplus(threshold=1.0), ValueError, "module: expected Softplus with a threshold of 20 or more.*got 1.0"),
        (nn.ModuleList([nn.ReLU()]), TypeError, "ModuleList"),
        (nn.Upsample(scale_factor=2), ValueError, "module: expected Upsample .* around="),
        (nn.FractionalMaxPool2d(2, 3), TypeError, "FractionalMaxPool2d"),
        (nn.LPPool1d(3, 2), ValueError, "module: expected LPPool1d with an even norm_type"),
        (nn.GLU(), ValueError, "module: expected no GLU"),
        (nn.Threshold(0.5, 0), ValueError, "module: expected an activation without a jump"),
        (nn.MultiheadAttention(4, 2), ValueError, "module: expected around= and radius=.*MultiheadAttention"),
        (nn.Embedding(3, 2, max_norm=1.0), ValueError, "module: expected Embedding without max_norm"),
        (nn.EmbeddingBag(3, 2, mode="sum"), ValueError, "module: expected EmbeddingBag with mode='mean'"),
        (nn.LSTM(2, 2), TypeError, "no Lipschitz bound is known for LSTM"),
        (nn.GRUCell(2, 2), TypeError, "no Lipschitz bound is known for .*GRUCell"),
        (Residual(nn.Linear(4, 1)), ValueError, "module: expected Residual to keep the shape"),
    ],
    ids=str,
)
def test_errors(module: nn.Module, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        lipschitz_bound(module)
