"""Property: no network of supported modules is steeper than its bound, at a point or between two."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spectral_param import Band, Bounded, Fixed, register_svd_parametrization
from spectral_param.bounds import lipschitz_bound, unrolled_lipschitz_bounds
from spectral_param.bounds.norms import operator_norm
from spectral_param.nn import Residual, SpectralRNN, SVDLinear

ROUNDING = 1e-9  # of the float64 Jacobians
SIGMA = st.sampled_from([None, Fixed(), Fixed(1.5), Band(0.5), Bounded(2.0)])
ACTIVATION = st.sampled_from(
    [
        nn.ReLU,
        lambda: nn.LeakyReLU(3.0),
        lambda: nn.ELU(2.5),
        lambda: nn.CELU(0.3),
        nn.SELU,
        lambda: nn.PReLU(4, init=-2.0),
        lambda: nn.Softplus(3.0),
        lambda: nn.Softmax(1),
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Tanh,
        nn.Sigmoid,
        nn.Identity,
        nn.Dropout,
    ]
)


@st.composite
def linear(draw: st.DrawFn) -> nn.Module:
    kind = draw(st.sampled_from(["plain", "registered", "frozen", "svd"]))
    if kind == "svd":
        return SVDLinear(4, 4, sigma=draw(SIGMA), reflectors=draw(st.integers(1, 4)))
    layer = nn.Linear(4, 4, bias=draw(st.booleans()))
    nn.init.normal_(layer.weight, std=draw(st.sampled_from([0.1, 1.0, 3.0])))
    if kind == "registered":
        chunks = draw(st.sampled_from([1, 2, 4]))
        register_svd_parametrization(layer, chunks=chunks, sigma=draw(SIGMA), init="orthogonal")
    if kind == "frozen":
        register_svd_parametrization(layer, base="frozen", reflectors=2, rank=2)
        for factor in layer.parametrizations.weight[0].factors[:-1]:
            factor.data.mul_(1 + torch.rand_like(factor))
    return layer


@st.composite
def convolution(draw: st.DrawFn) -> nn.Module:
    """Of 4 channels to 4, on signals of length 6, which it keeps."""
    kernel, dilation = draw(st.sampled_from([1, 3])), draw(st.sampled_from([1, 2]))
    groups, transposed = draw(st.sampled_from([1, 2, 4])), draw(st.booleans())
    options = {"dilation": dilation, "padding": dilation * (kernel - 1) // 2, "groups": groups}
    layer = (nn.ConvTranspose1d if transposed else nn.Conv1d)(4, 4, kernel, **options)
    if draw(st.booleans()):
        register_svd_parametrization(
            layer, chunks=draw(st.sampled_from([1, 2, 4])), sigma=draw(SIGMA), init="orthogonal"
        )
    return layer


@st.composite
def normalisation(draw: st.DrawFn) -> nn.Module:
    layer = nn.BatchNorm1d(4, affine=draw(st.booleans()), eps=draw(st.sampled_from([1e-5, 1.0])))
    layer.running_var = torch.rand(4) * draw(st.sampled_from([1e-6, 1.0]))
    if layer.affine:
        nn.init.normal_(layer.weight)
    return layer


POOLING = st.sampled_from([lambda: nn.MaxPool1d(3, 1, 1), lambda: nn.AvgPool1d(3, 1, 1)])


class Own(nn.Module):
    """A block with a forward that is not known."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.others = layers[0], nn.Sequential(*layers[1:])

    def forward(self, x: Tensor, scale: float = 0.5) -> Tensor:
        y = self.first(x) + x
        return torch.relu(self.others(y)) - scale * x


def network(layers: st.SearchStrategy[nn.Module]) -> st.SearchStrategy[nn.Module]:
    stacked = st.lists(layers, min_size=1, max_size=3)
    deeper = st.one_of(
        layers,
        stacked.map(lambda modules: Residual(*modules)),
        stacked.map(lambda modules: nn.Sequential(*modules)),
        stacked.map(lambda modules: Own(*modules)),
        layers.map(lambda module: nn.Sequential(module, module)),  # one module twice
    )
    whole = st.lists(deeper, min_size=1, max_size=4).map(lambda modules: nn.Sequential(*modules))
    return st.integers(0, 2**31).map(torch.manual_seed).flatmap(lambda _: whole)


def check(net: nn.Module, shape: tuple[int, ...]) -> None:
    """In float64, where the weights are what they are in float32 but for rounding that the bound has room for."""
    bound = lipschitz_bound(net).item()
    net = net.eval().double()
    for scale in (0.1, 3.0):
        x, other = (scale * torch.randn(2, *shape, dtype=torch.float64)).unbind()

        def output(x: Tensor) -> Tensor:
            return net(x.clone().unsqueeze(0)).flatten()

        jacobian = torch.autograd.functional.jacobian(output, x).flatten(1)
        assert torch.linalg.matrix_norm(jacobian, 2).item() <= bound * (1 + ROUNDING)
        with torch.no_grad():
            ratio = (output(x) - output(other)).norm() / (x - other).norm()
        assert ratio.item() <= bound * (1 + ROUNDING)


def make(maker: object) -> nn.Module:
    return maker()


@settings(max_examples=60, deadline=None)
@given(network(st.one_of(linear(), ACTIVATION.map(make), normalisation())))
def test_no_network_of_linear_layers_is_steeper(net: nn.Module) -> None:
    check(net, (4,))


@settings(max_examples=60, deadline=None)
@given(network(st.one_of(convolution(), ACTIVATION.map(make), normalisation(), POOLING.map(make))))
def test_no_convolutional_network_is_steeper(net: nn.Module) -> None:
    check(net, (4, 6))


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["plain", "registered", "spectral"]),
    layers=st.integers(1, 3),
    steps=st.integers(1, 6),
    nonlinearity=st.sampled_from(["relu", "tanh"]),
    sigma=SIGMA,
    seed=st.integers(0, 2**31),
)
def test_no_recurrent_network_is_steeper(
    kind: str, layers: int, steps: int, nonlinearity: str, sigma: nn.Module | None, seed: int
) -> None:
    torch.manual_seed(seed)
    if kind == "spectral":
        rnn: nn.Module = SpectralRNN(2, 4, layers, nonlinearity, sigma=sigma)
    else:
        rnn = nn.RNN(2, 4, layers, nonlinearity=nonlinearity)
        if kind == "registered":
            register_svd_parametrization(rnn, "weight_hh_l0", sigma=sigma, init="orthogonal")
    bounds = unrolled_lipschitz_bounds(rnn, steps)
    rnn = rnn.eval().double()
    x, h0 = torch.randn(steps, 2, dtype=torch.float64), torch.randn(layers, 4, dtype=torch.float64)
    jacobians = torch.autograd.functional.jacobian(lambda h0, x: rnn(x, h0)[0][-1], (h0, x))
    for jacobian, bound in zip(jacobians, bounds, strict=True):
        assert torch.linalg.matrix_norm(jacobian.flatten(1), 2).item() <= bound.item() * (1 + ROUNDING)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "reflectors"), [(1, None), (2, None), (8, 3), (65, None), (256, 16)])
def test_rounding_does_not_make_a_norm_smaller_than_that_of_the_weight(
    n: int, reflectors: int | None, dtype: torch.dtype
) -> None:
    for _ in range(5):
        layer = nn.Linear(n, n, dtype=dtype)
        register_svd_parametrization(layer, reflectors=reflectors, sigma=Fixed(), init="orthogonal")
        exact = torch.linalg.matrix_norm(layer.weight.detach().double(), 2).item()
        assert exact <= operator_norm(layer).item() <= 1 + 20 * torch.finfo(dtype).eps * n**0.5


def test_a_plain_weight_of_float32_is_not_read_in_float32() -> None:
    for _ in range(50):
        layer = nn.Linear(20, 20)
        exact = torch.linalg.matrix_norm(layer.weight.detach().double(), 2).item()
        assert exact <= operator_norm(layer).item() <= exact * (1 + 1e-13)
