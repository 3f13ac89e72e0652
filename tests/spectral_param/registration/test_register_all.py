import copy
import io
import itertools
import math
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
import torchvision
from torch import nn

from spectral_param import (
    Band,
    Fixed,
    register_all,
    register_svd_parametrization,
    remove_svd_parametrization,
    svd_parametrizations,
)
from spectral_param.parametrization.blocks import blocks_of
from spectral_param.registration import progress_line
from spectral_param.registration.injection import sole_holder


class Zoo(nn.Module):
    """One of each layer that has a weight, and parameters that are none."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.bilinear = nn.Bilinear(2, 3, 4)
        self.embedding = nn.Embedding(7, 3)
        self.bounded_embedding = nn.Embedding(7, 3, max_norm=1.0)
        self.sparse_embedding = nn.EmbeddingBag(7, 3, sparse=True)
        self.conv = nn.Conv2d(4, 6, 3, groups=2)
        self.transposed = nn.ConvTranspose1d(4, 6, 3)
        self.rnn = nn.RNN(3, 4)
        self.lstm = nn.LSTM(3, 4, proj_size=2)
        self.gru = nn.GRU(3, 4, bidirectional=True)
        self.cell = nn.LSTMCell(3, 4)
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.apart = nn.MultiheadAttention(4, 2, kdim=3, vdim=5)
        self.norm = nn.LayerNorm([3, 4])
        self.batch_norm = nn.BatchNorm1d(3)
        self.token = nn.Parameter(torch.zeros(1, 1, 4))
        self.table_of_weights = nn.Parameter(torch.zeros(2, 2, 2))
        self.matrix = nn.Parameter(torch.eye(3))


BLOCKS = {
    "linear.weight": 1,
    "bilinear.weight": 4,
    "embedding.weight": 1,
    "conv.weight": 2,
    "transposed.weight": 1,
    "rnn.weight_ih_l0": 1,
    "rnn.weight_hh_l0": 1,
    "lstm.weight_ih_l0": 4,
    "lstm.weight_hh_l0": 4,
    "lstm.weight_hr_l0": 1,
    "gru.weight_ih_l0": 3,
    "gru.weight_hh_l0": 3,
    "gru.weight_ih_l0_reverse": 3,
    "gru.weight_hh_l0_reverse": 3,
    "cell.weight_ih": 4,
    "cell.weight_hh": 4,
    "attention.in_proj_weight": 3,
    "attention.out_proj.weight": 1,
    "apart.q_proj_weight": 1,
    "apart.k_proj_weight": 1,
    "apart.v_proj_weight": 1,
    "apart.out_proj.weight": 1,
}


def two_layers():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))


def assert_same_values(model, values):
    assert list(model.state_dict()) == list(values)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, values[name], rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------- what is taken


def test_by_default_all_that_acts_as_a_matrix():
    zoo = Zoo()
    report = register_all(zoo)
    assert {name: p.chunks for name, p in report.taken.items()} == BLOCKS
    assert dict(svd_parametrizations(zoo)) == report.taken
    reasons = {
        "token": "no matrix",
        "matrix": "not chosen",
        "table_of_weights": "no matrix",
        "norm.weight": "a scale",
        "norm.bias": "a scale",
        "batch_norm.weight": "a vector",
        "attention.bias_k": "no matrix",
        "linear.bias": "a vector",
        "bounded_embedding.weight": "an embedding that changes its rows alone",
        "sparse_embedding.weight": "an embedding that changes its rows alone",
    }
    assert {name: report.passed_over[name] for name in reasons} == reasons


def test_taken_and_passed_over_are_all_parameters():
    before = [name for name, _ in Zoo().named_parameters()]
    report = register_all(Zoo())
    assert sorted([*report.taken, *report.passed_over]) == sorted(before)


def test_removal_is_the_opposite():
    zoo = Zoo()
    before = copy.deepcopy(zoo.state_dict())
    register_all(zoo)
    remove_svd_parametrization(zoo)
    assert not list(svd_parametrizations(zoo))
    assert_same_values(zoo, before)


@pytest.mark.parametrize("where", [nn.Linear, [nn.Linear], (nn.Linear, nn.GRUCell)])
def test_by_module_type(where):
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Conv1d(2, 2, 1), "c": nn.TransformerEncoderLayer(4, 2, 4)})
    report = register_all(model, where)
    assert list(report.taken) == ["a.weight", "c.self_attn.out_proj.weight", "c.linear1.weight", "c.linear2.weight"]
    assert report.passed_over["b.weight"] == "not chosen"


def test_by_predicate():
    zoo = Zoo()
    asked = []

    def where(name, module):
        asked.append((name, type(module)))
        return name == "matrix" or isinstance(module, nn.GRU)

    report = register_all(zoo, where)
    assert sorted(report.taken) == [name for name in sorted([*BLOCKS, "matrix"]) if name.startswith(("gru", "matrix"))]
    assert ("linear.weight", nn.Linear) in asked
    assert ("token", Zoo) in asked
    assert not any(name.endswith("bias") and name != "norm.bias" for name, _ in asked)


def test_a_part_at_a_time():
    model = two_layers()
    register_svd_parametrization(model[0])
    first = register_all(model, lambda name, _: name.startswith("2."), sigma=Band(5.0))
    assert list(first.taken) == ["2.weight"]
    again = register_all(model)
    assert again.taken == {}
    assert again.passed_over["0.weight"] == again.passed_over["2.weight"] == "parametrized already"


def test_a_single_layer_is_a_model():
    assert list(register_all(nn.Linear(2, 2)).taken) == ["weight"]


def test_a_module_at_two_places_is_registered_once():
    shared = nn.Linear(3, 3)
    assert list(register_all(nn.Sequential(shared, shared)).taken) == ["0.weight"]


def test_reflectors_as_many_as_there_can_be():
    model = nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 2))
    taken = register_all(model, reflectors=4, init="orthogonal").taken
    assert [p.reflectors for p in taken.values()] == [(4, 4), (2, 2)]
    taken = register_all(two_layers(), reflectors=(8, 1), init="orthogonal").taken
    assert [p.reflectors for p in taken.values()] == [(3, 1), (3, 1)]


def test_settings_reach_every_weight():
    sigma = Band(0.1)
    taken = register_all(two_layers(), sigma=sigma, init="orthogonal", train="sigma").taken
    for parametrization in taken.values():
        assert parametrization.sigma_map.radius == 0.1
        assert parametrization.sigma_map is not sigma
        assert [factor.requires_grad for factor in parametrization.factors] == [False, True, False]


def test_models_of_torchvision():
    resnet = torchvision.models.resnet18(num_classes=5)
    transformer = torchvision.models.VisionTransformer(
        image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, num_classes=5
    )
    for model in (resnet, transformer):
        kernels = [name for name, p in model.named_parameters() if p.dim() > 1 and "weight" in name]
        assert sorted(register_all(model, reflectors=1, init="orthogonal").taken) == sorted(kernels)
        assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


@pytest.mark.parametrize(
    ("module", "tensor_name", "blocks"),
    [
        (nn.GRUCell(2, 2), "weight_hh", 3),
        (nn.RNNCell(2, 2), "weight_hh", 1),
        (nn.Conv3d(4, 4, 1, groups=4), "weight", 4),
        (nn.ConvTranspose2d(4, 4, 1, groups=2), "weight", 2),
        (nn.MultiheadAttention(4, 2), "bias_k", 1),
    ],
)
def test_blocks(module, tensor_name, blocks):
    assert blocks_of(module, tensor_name) == blocks


# ---------------------------------------------------------------------------------------------------------- the report


def test_printing():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(6)))
    report = register_all(model, where=lambda name, _: name == "3.weight")
    assert repr(report) == str(report)
    assert str(report).splitlines() == [
        "registered 1, passed over 11",
        "  3.weight: 2×2, reflectors=(2, 2)",
        "  passed over, not chosen: 0.weight, 1.weight, 2.weight, 4.weight and 1 more",
        "  passed over, a vector: 0.bias, 1.bias, 2.bias, 3.bias and 2 more",
        "  to train at the rate of the plain model: parameter_groups(model, lr=…)",
    ]
    assert "lr=…" not in str(register_all(nn.ReLU()))


def test_one_warning_names_the_weights_whose_sigma_moved():
    model = two_layers()
    with pytest.warns(UserWarning, match="σ outside the range") as told:
        report = register_all(model, sigma=Band(0.01, center=5.0))
    [warning] = told
    assert str(warning.message).startswith("0.weight, 2.weight: σ outside the range of Band(radius=0.01, center=5.0)")
    assert warning.filename == __file__
    assert all(change > 1 for change in report.changed.values())


def test_one_warning_for_all_weights_that_few_reflectors_change():
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 1))
    before = [layer.weight.detach().clone() for layer in model]
    with pytest.warns(UserWarning, match="too few reflectors") as told:
        report = register_all(model, reflectors=2)
    [warning] = told
    most = max(report.changed, key=report.changed.get)
    assert str(warning.message).startswith("0.weight, 1.weight, 2.weight, 3.weight and 2 more: too few reflectors")
    assert f"{most} changes most, by {100 * report.changed[most]:.2g} %" in str(warning.message)
    for i, (layer, weight) in enumerate(zip(model, before, strict=True)):
        change = ((layer.weight - weight).norm() / weight.norm()).item()
        assert report.changed[f"{i}.weight"] == pytest.approx(change, rel=1e-4, abs=1e-5)
    lines = str(report).splitlines()
    assert lines[1] == f"  0.weight: 8×8, reflectors=(2, 2), changed by {100 * report.changed['0.weight']:.2g} %"
    assert lines[7] == "  6.weight: 1×8, reflectors=(1, 1)"


def test_nothing_is_told_of_weights_that_stay_or_are_drawn():
    for settings in ({}, {"init": "orthogonal", "reflectors": 1}):
        report = register_all(two_layers(), **settings)  # a warning would be an error
        assert not any("changed" in line for line in str(report).splitlines())
    assert report.changed == {}
    report = register_all(nn.Linear(2, 2, device="meta"))
    assert report.changed == {}


def test_a_weight_of_zeros_has_not_changed():
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    assert register_all(layer).changed == {"weight": 0.0}


def test_what_is_told_of_many_weights_is_told_once():
    model = two_layers()
    model(torch.randn(2, 4)).sum().backward()
    with pytest.warns(UserWarning, match="the gradient") as told:
        register_all(model)
    assert [str(warning.message) for warning in told] == [
        "0.weight, 2.weight: the gradient of the weight cannot be carried over to its factors: "
        "register after zero_grad()."
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_on_the_terminal_comes_after_five_seconds_and_goes(monkeypatch):
    clock = itertools.count(0, 3)
    monkeypatch.setattr(progress_line, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr("sys.stderr", Terminal())
    register_all(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))))
    written = "registering 2/3 ..."
    assert sys.stderr.getvalue() == f"\r{written}\r{written.replace('2', '3', 1)}\r{' ' * len(written)}\r"
    monkeypatch.setattr("sys.stderr", io.StringIO())
    register_all(nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))))
    assert sys.stderr.getvalue() == ""


# ------------------------------------------------------------------------------------------------------ all or nothing


def assert_unchanged(model, before):
    """The very same parameters in the same order, in modules of the same type."""
    assert [(name, id(p)) for name, p in model.named_parameters()] == before["parameters"]
    assert [type(module) for module in model.modules()] == before["types"]


def snapshot(model):
    return {
        "parameters": [(name, id(p)) for name, p in model.named_parameters()],
        "types": [type(module) for module in model.modules()],
    }


def recurrent_and_broken():
    model = nn.Sequential(nn.GRU(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[2].weight.data[0, 0] = math.nan
    return model


def test_a_weight_that_fails_leaves_all_as_they_were():
    model = recurrent_and_broken()
    before, x = snapshot(model), torch.randn(2, 1, 3)
    model[1].weight.grad = torch.ones(3, 3)
    output = model[0](x)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the gradient
        with pytest.raises(ValueError, match=r"^2\.weight: weight: expected finite values"):
            register_all(model)
    assert_unchanged(model, before)
    assert torch.equal(model[1].weight.grad, torch.ones(3, 3))
    assert torch.equal(model[0](x)[0], output)
    model[0](x)[0].sum().backward()
    assert model[0].weight_hh_l0.grad is not None


def test_a_warning_that_is_an_error_leaves_all_as_they_were():
    model = two_layers()
    before = snapshot(model)
    with pytest.raises(UserWarning, match=r"^0\.weight, 2\.weight: σ outside"):
        register_all(model, sigma=Band(0.01, center=5.0))
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"reflectors": 0}, ValueError, r"^0\.weight: reflectors: expected a number from 1 to 3"),
        ({"reflectors": "4"}, TypeError, r"^0\.weight: reflectors: expected None"),
        ({"reflectors": (1, 2, 3)}, ValueError, r"^0\.weight: reflectors: "),
        ({"sigma": 1.0}, TypeError, r"^0\.weight: sigma: expected a σ map"),
        ({"sigma": Fixed(), "train": "sigma"}, ValueError, r"^0\.weight: train: "),
        ({"sigma": Band(torch.ones(2))}, ValueError, r"^0\.weight: sigma: expected radius of shape \(3,\)"),
        ({"init": "zero"}, ValueError, r"^0\.weight: init: expected"),
        ({"where": 3}, TypeError, r"^where: expected None, a predicate"),
        ({"where": "0.weight"}, TypeError, r"^where: expected None, a predicate"),
        ({"where": nn.Linear(2, 2)}, TypeError, r"^where: expected a module type, got a Linear itself"),
        ({"where": [nn.Linear, nn.ReLU()]}, TypeError, r"^where: expected None, a predicate"),
    ],
)
def test_bad_settings(settings, error, message):
    model = two_layers()
    before = snapshot(model)
    with pytest.raises(error, match=message):
        register_all(model, **settings)
    assert_unchanged(model, before)


def test_no_model():
    with pytest.raises(TypeError, match=r"^model: expected a torch.nn.Module, got list"):
        register_all([nn.Linear(2, 2)])


def test_a_predicate_of_other_arguments():
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"^where: expected a predicate, called as where\(name, module\), got another"):
        register_all(model, where=lambda module: True)
    assert register_all(model, where=lambda *place: True).taken


def test_weights_without_a_shape():
    model = nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"^1\.weight: tensor_name: 'weight' of LazyLinear has no shape"):
        register_all(model, reflectors=2, init="orthogonal")
    assert not list(svd_parametrizations(model))


def test_a_parameter_that_is_no_matrix_fails_where_it_is_asked_for():
    zoo = Zoo()
    with pytest.raises(ValueError, match=r"^token: tensor_name: expected two dimensions"):
        register_all(zoo, lambda name, _: name in ("linear.weight", "token"))
    assert not list(svd_parametrizations(zoo))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(5, 3)
        self.hidden = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 5, bias=False)
        self.decoder.weight = self.encoder.weight


@pytest.mark.parametrize("where", [None, nn.Linear, nn.Embedding, lambda name, module: True])
def test_tied_weights_are_passed_over_whatever_where_says(where):
    model = LanguageModel()
    tied = model.encoder.weight
    report = register_all(model, where)
    assert list(report.taken) == ([] if where is nn.Embedding else ["hidden.weight"])
    assert report.passed_over["encoder.weight"] == "not chosen" if where is nn.Linear else "tied to decoder.weight"
    assert report.passed_over["decoder.weight"] == "not chosen" if where is nn.Embedding else "tied to encoder.weight"
    assert model.decoder.weight is model.encoder.weight is tied


def test_where_chooses_beside_tied_weights():
    model = LanguageModel()
    assert list(register_all(model, lambda name, _: name == "hidden.weight").taken) == ["hidden.weight"]
    assert model.decoder.weight is model.encoder.weight


def test_weights_that_nobody_else_holds_are_not_searched_for(monkeypatch):
    searches = []
    search = sole_holder.gc.get_referrers
    monkeypatch.setattr(sole_holder.gc, "get_referrers", lambda *objects: searches.append(objects) or search(*objects))
    model = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(2, 2, 2), nn.Embedding(5, 3), nn.GRU(2, 3))
    assert len(register_all(model).taken) == 5
    assert not searches
    held = nn.Linear(4, 4)
    weight = held.weight
    register_all(held)
    assert searches[0][0] is weight


def test_a_weight_tied_to_one_outside_of_the_model_is_passed_over():
    outside = LanguageModel()
    model = nn.Sequential(outside.encoder, outside.hidden)
    report = register_all(model)
    assert list(report.taken) == ["1.weight"]
    assert report.passed_over["0.weight"] == "tied to 'weight' of Linear"


class Block(nn.Module):
    """As in the usual small language models: attention and a network, before each a norm."""

    def __init__(self, width):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = self.c_attn(self.ln_1(x)).chunk(3, -1)
        x = x + self.c_proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.ln_2(x))


class TiedTransformer(nn.Module):
    def __init__(self, words=11, length=6, width=8):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


def test_one_line_takes_a_transformer_with_a_tied_head():
    model, tokens = TiedTransformer(), torch.randint(11, (2, 6))
    before = model(tokens)
    report = register_all(model)
    assert [name for name, why in report.passed_over.items() if why.startswith("tied")] == [
        "wte.weight",
        "lm_head.weight",
    ]
    assert len(report.taken) == 1 + 2 * 4
    torch.testing.assert_close(model(tokens), before, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------- what torch does not know


class Experts(nn.Module):
    """A matrix for each of four experts, as transformers keeps them; and tables that are not such."""

    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(4, 6, 3))
        self.down_proj = nn.Parameter(torch.randn(4, 3, 3))
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.positions = nn.Parameter(torch.randn(4, 6, 3))


def test_experts_are_taken_with_a_matrix_each():
    for where in (None, Experts):
        report = register_all(Experts(), where)
        assert {name: p.chunks for name, p in report.taken.items()} == {"gate_up_proj": 4, "down_proj": 4, "weight": 1}
        assert report.passed_over["positions"] == ("no matrix" if where is None else "not chosen")


def test_layers_in_plain_containers_are_named():
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    model.layers = [nn.Linear(2, 2), model[0]]
    model[0].others = {"a": (nn.Linear(2, 2, bias=False),)}
    report = register_all(model)
    assert list(report.taken) == ["0.weight"]
    assert report.passed_over == {
        "layers[0].weight": "not registered with the model: in a list",
        "layers[0].bias": "not registered with the model: in a list",
        "0.others['a'][0].weight": "not registered with the model: in a tuple",
    }


class Wrapper(torch.Tensor):
    """A tensor made of another, as quantized ones are."""

    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Wrapper(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return Wrapper(args[0].inner)
        raise ValueError(f"no {function}")


def test_quantized_weights_are_passed_over():
    model = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(4))
    model[0].weight = nn.Parameter(torch.ones(3, 3, dtype=torch.int8), requires_grad=False)
    model[1].weight = nn.Parameter(torch.ones(3, 3).to(torch.float8_e4m3fn), requires_grad=False)
    model[2].weight = nn.Parameter(Wrapper(torch.ones(3, 3, dtype=torch.int8)), requires_grad=False)
    report = register_all(model)
    assert list(report.taken) == ["3.weight"]
    assert report.passed_over == {
        "0.weight": "its dtype is int8",
        "1.weight": "its dtype is float8_e4m3fn",
        "2.weight": "it is a Wrapper",
    }
    for layer in model[:3]:
        with pytest.raises((TypeError, ValueError), match=r"^tensor_name: "):
            register_svd_parametrization(layer)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
def test_weights_under_hooks_are_passed_over():
    model = nn.Sequential(
        nn.utils.weight_norm(nn.Linear(3, 3)),
        nn.utils.spectral_norm(nn.Linear(3, 3)),
        nn.utils.prune.identity(nn.Linear(3, 3), "weight"),
        nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)),
    )
    report = register_all(model)
    assert report.taken == {}
    assert "weight_norm" in report.passed_over["0.weight_v"]
    assert "spectral_norm" in report.passed_over["1.weight_orig"]
    assert "prune" in report.passed_over["2.weight_orig"]
    assert report.passed_over["3.weight"] == "parametrized already"


def test_weights_that_are_too_small_for_what_was_asked_are_said_to_have_less():
    report = register_all(nn.Sequential(nn.Linear(3, 3)), base="frozen", reflectors=3, rank=2)
    assert report.asked == {"0.weight": "reflectors=3"}
    assert "  too small for reflectors=3: 0.weight\n" in str(report)
    report = register_all(nn.Sequential(nn.Linear(3, 8)), reflectors=(3, 4), init="orthogonal")
    assert report.asked == {"0.weight": "reflectors=(3, 4)"}
    model = nn.Sequential(nn.Linear(3, 3))
    assert register_all(model, base="frozen", reflectors=2, rank=9).asked == {"0.weight": "rank=9"}
    assert "too small" not in str(register_all(nn.Sequential(nn.Linear(4, 4)), reflectors=[4, 4]))
