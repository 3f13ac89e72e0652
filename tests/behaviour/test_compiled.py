"""Registered models under ``torch.compile``: one graph, few nodes, the same ways and bits as without it."""

import copy
import functools
import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from spectral_param import register_all, register_svd_parametrization
from spectral_param.nn import SpectralRNN, SVDLinear
from tests.versions import COMPILES_TO_THE_BIT, hooks_seen_by_compilers


@pytest.fixture(autouse=True)
def _forgets():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def registered(n, m, **kwargs):
    return register_svd_parametrization(nn.Linear(n, n), reflectors=m, init="orthogonal", **kwargs)


def compiled(model, **kwargs):
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(model, fullgraph=True, backend=counter, **kwargs), counter


def operators(counter, at=0):
    names = [str(node.target).removesuffix(".default") for node in counter.graphs[at].graph.nodes]
    return [name.removeprefix("spectral_param.") for name in names if name.startswith("spectral_param.")]


def agree(model, other, x):
    """To the bit, with gradients; older compilers round otherwise."""
    x = x.detach().requires_grad_()
    y, want = model(x), other(x)
    parts = [x, *(p for p in other.parameters() if p.requires_grad)]
    cotangent = torch.randn_like(want)
    pairs = zip(torch.autograd.grad(y, parts, cotangent), torch.autograd.grad(want, parts, cotangent), strict=True)
    same = torch.equal if COMPILES_TO_THE_BIT else functools.partial(torch.allclose, rtol=1e-4, atol=1e-5)
    return same(y, want) and all(same(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("m", "vectors", "names"),
    [
        (2, 16, ["thin_factors", "thin_product"]),
        (2, 3, ["unpack", "reflect"] * 2),
        (32, 16, ["unpack", "reflect"] * 2),
        (32, 1000, ["unpack", "reflect"] * 2),  # W is built
    ],
)
def test_a_compiled_layer_takes_the_way_of_the_eager_one_to_the_bit(m, vectors, names):
    layer = registered(32, m)
    model, counter = compiled(layer)
    assert agree(model, layer, torch.randn(vectors, 32))
    assert counter.frame_count == 1
    if COMPILES_TO_THE_BIT:  # older compilers go another way in places
        assert operators(counter) == names


def test_w_of_few_reflectors_is_one_operator():
    layer = registered(32, 4, matrix_free=False)
    model, counter = compiled(layer)
    assert agree(model, layer, torch.randn(16, 32))
    assert operators(counter) == ["low_rank_weight"]


@pytest.mark.parametrize("m", [2, 12, 32])
def test_batches_of_all_sizes_make_three_graphs_at_most(m):
    layer = registered(32, m)
    model, counter = compiled(layer)
    for vectors in (5, 16, 17, 100, 200, 300, 333, 47):
        assert agree(model, layer, torch.randn(vectors, 32))
    assert counter.frame_count <= 3


@pytest.mark.parametrize("kwargs", [{"reflectors": 2}, {}, {"reflectors": (0, 2)}], ids=str)
def test_a_layer_without_w_compiles_for_all_batches(kwargs):
    layer = SVDLinear(16, 12, **kwargs)
    model, counter = compiled(layer, dynamic=True)
    for shape in ((3,), (5,), (2, 4), (40,), (1,)):
        x = torch.randn(*shape, 16)
        torch.testing.assert_close(model(x), layer(x))
    assert counter.frame_count <= 5


def test_an_exported_layer_takes_one_vector_too():
    layer = SVDLinear(16, 16, reflectors=2)
    batch = torch.export.Dim("batch")
    exported = torch.export.export(layer, (torch.randn(4, 16),), dynamic_shapes=({0: batch},)).module()
    for size in (1, 2, 100):
        x = torch.randn(size, 16)
        torch.testing.assert_close(exported(x), layer(x))


def test_coarse_products_leave_a_compiled_weight_as_it_is():
    layer, x = registered(32, 32, matrix_free=False), torch.eye(32)
    model, _ = compiled(lambda: layer.weight)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        w = model()
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(torch.linalg.svdvals(w), torch.ones(32), rtol=0, atol=1e-5)
    torch.testing.assert_close(w, layer(x).mT - layer.bias.unsqueeze(-1))


def test_a_compiled_layer_under_autocast_and_in_half_precision():
    layer, x = registered(32, 2), torch.randn(16, 32)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(layer)[0](x), layer(x))
    half = registered(32, 2).bfloat16()
    torch.testing.assert_close(compiled(half)[0](x.bfloat16()), half(x.bfloat16()))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own
@pytest.mark.parametrize("m", [2, 32])
def test_transforms_within_a_compiled_function(m):
    layer = registered(32, m).double()
    x, t = torch.randn(2, 16, 32, dtype=torch.float64)

    def transformed(x):
        def loss(x):
            return layer(x).square().sum()

        return torch.func.grad(loss)(x), torch.vmap(lambda x: layer(x))(x), torch.func.jvp(layer, (x,), (t,))[1]

    torch.testing.assert_close(compiled(transformed)[0](x), transformed(x))


@hooks_seen_by_compilers
def test_hooks_on_a_parametrization_are_called_and_those_added_later():
    layer, x = registered(8, 8), torch.randn(2, 8)
    model, counter = compiled(layer)
    want = model(x)
    handle = layer.parametrizations.weight.register_forward_hook(lambda module, args, w: 2 * w)
    torch.testing.assert_close(model(x) - layer.bias, 2 * (want - layer.bias))
    handle.remove()
    torch.testing.assert_close(model(x), want)
    assert counter.frame_count == 2


def test_reflectors_that_are_frozen():
    layer = registered(16, 16, train="sigma")
    model, _ = compiled(layer)
    for _ in range(2):
        x = torch.randn(5, 16)
        torch.testing.assert_close(model(x), layer(x))
        with torch.no_grad():
            layer.parametrizations.weight.original0.normal_()


@pytest.mark.parametrize(
    ("matrix_free", "names"),
    [(True, ["thin_factors", "low_rank_scan"]), (False, ["low_rank_weight", "rnn_scan"])],
)
def test_a_compiled_recurrence_is_one_operator_a_layer_for_all_lengths(matrix_free, names):
    rnn = SpectralRNN(3, 16, reflectors=2, matrix_free=matrix_free)
    model, counter = compiled(lambda x: rnn(x)[0])
    for steps, batch in ((4, 2), (5, 2), (7, 3), (6, 5)):
        x = torch.randn(steps, batch, 3, requires_grad=True)
        parts, cotangent = [x, *rnn.parameters()], torch.randn(steps, batch, 16)
        y, want = model(x), rnn(x)[0]
        assert torch.equal(y, want)
        torch.testing.assert_close(
            torch.autograd.grad(y, parts, cotangent), torch.autograd.grad(want, parts, cotangent), rtol=1e-5, atol=1e-5
        )
    assert counter.frame_count <= 3
    assert operators(counter) == names


def test_a_compiled_recurrence_under_autocast_and_by_its_last_state():
    rnn, x = SpectralRNN(3, 16, num_layers=2, reflectors=2), torch.randn(5, 2, 3)
    model = compiled(lambda x: rnn(x)[1])[0]
    torch.testing.assert_close(model(x), rnn(x)[1])
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(x), rnn(x)[1])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = registered(width, 4), registered(width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own
def test_equal_blocks_compiled_one_by_one_make_one_graph():
    blocks = nn.Sequential(*(Block(32) for _ in range(12)))
    x = torch.randn(20, 32, requires_grad=True)  # as what comes from another layer does
    want = blocks(x)
    counter = CompileCounterWithBackend("aot_eager")
    for block in blocks:
        block.compile(fullgraph=True, backend=counter)
    torch.testing.assert_close(blocks(x), want)
    assert counter.frame_count == 1


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, images):
        return self.head(self.blocks(self.patches(images).flatten(2).mT).mean(1))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.blocks(self.embedding(tokens), mask=mask, is_causal=True))


@pytest.mark.parametrize(
    ("make", "x", "reflectors"),
    [(ViT, torch.randn(4, 3, 16, 16), None), (GPT, torch.randint(50, (4, 12)), 4)],
    ids=["ViT", "GPT"],
)
def test_whole_models_train_compiled_in_one_graph(make, x, reflectors):
    eager = make()
    register_all(eager, reflectors=reflectors, init="orthogonal")
    twin = copy.deepcopy(eager)
    model, counter = compiled(twin)
    losses = []
    for trained, run in ((eager, eager), (twin, model)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        losses.append([])
        for _ in range(3):
            optimizer.zero_grad()
            loss = run(x).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert counter.frame_count == 1


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_packaged_layer_runs_on_batches_of_any_size(tmp_path):
    layer, batch = SVDLinear(16, 16, reflectors=2).eval(), torch.export.Dim("batch")
    with torch.no_grad():
        exported = torch.export.export(layer, (torch.randn(4, 16),), dynamic_shapes=({0: batch},))
        path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "layer.pt2"))
        packaged = torch._inductor.aoti_load_package(path)
        for size in (1, 4, 9):
            x = torch.randn(size, 16)
            torch.testing.assert_close(packaged(x), layer(x))
