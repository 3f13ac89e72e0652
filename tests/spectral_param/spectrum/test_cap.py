import copy
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from spectral_param import Band, Bounded, Fixed, SpectralCap, register_svd_parametrization, singular_values
from spectral_param.spectrum.dense.ceiling import Ceiling
from spectral_param.torch_state.shards import whole
from tests.versions import muon


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 6, 4))

    def forward(self, x):
        return torch.einsum("epq,bq->bep", self.up, x)


def loss_of(model):
    return model(torch.randn(4, 6)).square().mean() - 3 * model(torch.randn(4, 6)).mean()


def optimizers():
    yield "AdamW", lambda p: torch.optim.AdamW(p, lr=0.1)
    yield "fused", lambda p: torch.optim.AdamW(p, lr=0.1, fused=True)
    yield pytest.param("Muon", lambda p: torch.optim.Muon([w for w in p if w.dim() == 2], lr=0.3), marks=muon)
    yield "SGD", lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)


@pytest.mark.parametrize(("name", "build"), list(optimizers()))
def test_every_step_of_every_optimizer_ends_below_the_edge(name, build):
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6, bias=name != "Muon"), nn.Tanh())
    held = [module for module in model if isinstance(module, nn.Linear)]
    optimizer = build(list(model.parameters()))
    SpectralCap(model, 0.7).attach(optimizer)
    for _ in range(60):
        for module in held:
            assert singular_values(module).max() <= 0.707
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert max(singular_values(module).max() for module in held) > 0.65


def test_layers_of_every_kind_are_read_as_registration_reads_them():
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 8, 3),
            "transposed": nn.ConvTranspose2d(8, 4, 3),
            "bilinear": nn.Bilinear(3, 4, 5),
            "lstm": nn.LSTM(4, 6),
            "experts": Experts(),
            "embedding": nn.Embedding(9, 4),
            "norm": nn.LayerNorm(4),
            "registered": register_svd_parametrization(nn.Linear(3, 3), sigma=Bounded(0.2), init="orthogonal"),
        }
    )
    cap = SpectralCap(model, 0.2)
    assert cap.names == [
        "conv.weight",
        "transposed.weight",
        "bilinear.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "experts.up",
        "embedding.weight",
    ]
    assert cap.hold_() == cap.names
    assert cap.hold_() == []
    for name in cap.names:
        module, _, tensor_name = name.partition(".")
        sigma = singular_values(model[module], tensor_name)
        assert sigma.max().item() == pytest.approx(0.2, rel=1e-4)
    assert model["experts"].up.shape == (3, 6, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_packed_and_complex_numbers_are_no_matrices(dtype):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight = nn.Parameter(torch.ones(3, 3).to(dtype), requires_grad=False)
    assert SpectralCap(model, 0.1).names == ["1.weight"]


def test_gates_and_groups_are_capped_each_on_its_own():
    lstm, conv = nn.LSTM(4, 6), nn.Conv2d(4, 6, 3, groups=2)
    whole = SpectralCap(copy.deepcopy(lstm), 0.3, dense="weight_hh*")
    SpectralCap(lstm, 0.3, dense="weight_hh*", per_gate=True).hold_()
    assert whole.names == ["weight_hh_l0"]
    gates = torch.linalg.svdvals(lstm.weight_hh_l0.detach().reshape(4, 6, 6))
    torch.testing.assert_close(gates[:, 0], torch.full((4,), 0.3))
    SpectralCap(conv, 0.1, per_gate=True).hold_()
    torch.testing.assert_close(
        torch.linalg.svdvals(conv.weight.detach().reshape(2, 3, 18))[:, 0], torch.full((2,), 0.1)
    )


def test_a_run_goes_on_from_a_checkpoint_bit_by_bit():
    def start():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))
        return model, torch.optim.AdamW(model.parameters(), lr=0.03)

    def train(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()

    model, optimizer = start()
    SpectralCap(model, 0.8).attach(optimizer)
    train(model, optimizer, range(20))
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, range(20, 40))
    again, optimizer = start()
    again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    SpectralCap(again, 0.8).attach(optimizer)
    train(again, optimizer, range(20, 40))
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_weights_that_no_optimizer_holds_are_named_and_detach_ends_it():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    model[1].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=1.0)
    with pytest.warns(UserWarning, match=r"^SpectralCap: no optimizer holds 0\.weight\.$"):
        cap = SpectralCap(model, 0.1).attach(optimizer)
    cap.detach()
    model[0].weight.data.fill_(1.0)
    optimizer.step()
    assert model[0].weight.min() == 1


def test_a_step_looks_at_the_weights_of_its_own_optimizer_alone(monkeypatch):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizers = [torch.optim.SGD(module.parameters(), lr=1.0) for module in model]
    SpectralCap(model, 0.1).attach(*optimizers)
    seen = []
    monkeypatch.setattr(Ceiling, "hold_", lambda ceiling, weight: seen.append(weight) or False)
    optimizers[1].step()
    assert len(seen) == 1
    assert seen[0] is model[1].weight


def test_an_optimizer_in_a_wrapper_is_seen():
    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    SpectralCap(layer, 0.1).attach(Wrapper(optimizer))
    layer.weight.data.fill_(1.0)
    optimizer.step()
    assert singular_values(layer).max() <= 0.101


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max": 0.0}, "max: expected a positive, finite number for plain weights, got 0.0"),
        ({"max": float("inf")}, "max: expected a positive, finite number"),
        ({"max": 1.0, "tolerance": 0.0}, "tolerance: expected a positive, finite number"),
        ({"max": 1.0, "dense": "head.*"}, r"dense: expected patterns of plain weights, head\.\* matches none"),
    ],
)
def test_what_cannot_be_held_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SpectralCap(nn.Linear(3, 3), **options)


def test_registered_weights_that_may_go_above_are_named():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    register_svd_parametrization(model[0])
    register_svd_parametrization(model[1], sigma=Band(0.1), init="orthogonal")
    with pytest.warns(UserWarning, match=r"SpectralCap passes over 0\.weight; a weight in SVD form .*Bounded"):
        cap = SpectralCap(model, 1.2)
    assert cap.names == ["2.weight"]
    assert SpectralCap(model, 1.2, dense="2.*").names == ["2.weight"]
    with pytest.raises(ValueError, match=r"matches none\. Not held: 0\.weight; .*clip_singular_values_"):
        SpectralCap(model[:1], 1.2)


@pytest.mark.parametrize("sigma", [Band(0.1, center=-2.0), Band(0.1, center=2.0), Fixed(-2.0), Fixed(2.0)])
def test_of_either_sign(sigma):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    register_svd_parametrization(model[0], sigma=sigma, init="orthogonal")
    with pytest.warns(UserWarning, match=r"SpectralCap passes over 0\.weight"):
        SpectralCap(model, 1.0)
    SpectralCap(model, 3.0)


@pytest.mark.parametrize(("rank", "edge", "told"), [(2, 0.5, True), (2, 1.2, False), (0, 1.2, True), (3, 0.5, False)])
def test_sigma_of_a_frozen_base_that_stay_above_are_told(rank, edge, told):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[0].weight.data = torch.diag(torch.tensor([1.0, 1.0, 1.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of σ that the map moves
        register_svd_parametrization(model[0], base="frozen", rank=rank, sigma=Bounded(0.4))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        SpectralCap(model, edge)
    assert any("passes over 0.weight" in str(w.message) for w in said) == told


def test_a_weight_that_was_registered_meanwhile_is_named():
    model = nn.Sequential(nn.Linear(3, 3))
    cap = SpectralCap(model, 1.0)
    register_svd_parametrization(model[0])
    with pytest.raises(ValueError, match=r"^0\.weight: expected the parameter that SpectralCap holds"):
        cap.hold_()


def capped_run(rank, kind):
    """σ at every step, and the weights at the end, on half of the data; ``rank`` ``None``: alone on all of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6))
    data = torch.randn(12, 8, 6)
    if kind == "ddp":
        trained = nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp2":
        mesh = init_device_mesh("cpu", (2,))
        for module in (model[0], model[2], model):
            fully_shard(module, mesh=mesh)
        trained = model
    else:
        trained = model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    SpectralCap(model, 0.9).attach(optimizer)
    greatest = []
    for x in data:
        optimizer.zero_grad()
        half = x if rank is None else x[4 * rank : 4 * rank + 4]
        (trained(half) - 3 * half).square().mean().backward()
        optimizer.step()
        weights = [whole(model[i].weight.detach()) for i in (0, 2)]
        greatest.append([torch.linalg.svdvals(weight)[0].item() for weight in weights])
    return torch.tensor(greatest), weights


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_hold_what_one_holds(two_processes, kind):
    alone, expected = capped_run(None, "alone")
    assert 0.9 < alone.max() <= 0.909
    for greatest, weights in two_processes(capped_run, kind):
        torch.testing.assert_close(greatest, alone, rtol=1e-4, atol=1e-4)
        for weight, other in zip(weights, expected, strict=True):
            torch.testing.assert_close(weight, other, rtol=1e-4, atol=1e-4)


def test_float64_weights_are_held_at_every_step():
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 30).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SpectralCap(model, max=2.0).attach(optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        (-model(torch.randn(8, 20, dtype=torch.float64)).square().mean()).backward()
        optimizer.step()
        assert torch.linalg.svdvals(model.weight).max() <= 2.02


def test_a_weight_that_is_no_parameter_any_more_is_missed_aloud():
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SpectralCap(model, max=2.0).attach(optimizer)
    torch.nn.utils.parametrizations.weight_norm(model)
    model(torch.randn(4, 6)).sum().backward()
    with pytest.raises(ValueError, match="build it anew"):
        optimizer.step()


def test_a_weight_that_is_pruned_is_refused_with_the_remedy():
    model = torch.nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    SpectralCap(model, max=2.0).attach(optimizer)
    torch.nn.utils.prune.l1_unstructured(model, "weight", amount=0.5)
    model(torch.randn(4, 6)).sum().backward()
    with pytest.raises(ValueError, match="^weight: .* what pruning has put in its place; prune after training"):
        optimizer.step()


@pytest.mark.parametrize("argument", ["max", "tolerance"])
def test_a_cap_that_is_no_number_is_an_error_that_names_it(argument):
    for wrong in ("1", None, True, [1.0], 1j, torch.ones(2)):
        with pytest.raises(TypeError, match=f"{argument}: expected a number, got {type(wrong).__name__}"):
            SpectralCap(nn.Linear(3, 3), **{"max": 1.0} | {argument: wrong})
    for wrong in (float("nan"), -1.0, 0):
        with pytest.raises(ValueError, match=f"{argument}: expected a positive, finite number .* got {wrong}"):
            SpectralCap(nn.Linear(3, 3), **{"max": 1.0} | {argument: wrong})


def test_what_is_no_optimizer_is_refused_and_those_that_are_followed_stay():
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 10.0)
    cap = SpectralCap(layer, 1.0).attach(optimizer)
    for wrong in (3, [optimizer], layer):
        with pytest.raises(
            TypeError, match=f"optimizers: expected each to be an optimizer, got {type(wrong).__name__}"
        ):
            cap.attach(optimizer, wrong)
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    assert singular_values(layer).max() <= 1.01


@pytest.mark.parametrize("again", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_of_an_attached_cap_holds_the_copy_of_the_model_once_it_is_attached(again):
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 10.0)
    cap = SpectralCap(layer, 1.0).attach(optimizer)
    other, other_cap, other_optimizer = again((layer, cap, optimizer))

    def step(layer, optimizer):
        layer(torch.ones(3)).sum().backward()
        optimizer.step()
        return singular_values(layer).max().item()

    assert step(other, other_optimizer) > 5
    other_cap.attach(other_optimizer)
    assert step(other, other_optimizer) <= 1.01
    other_cap.detach()
    assert step(layer, optimizer) <= 1.01
