"""What users do with a module of theirs: every habit keeps working on a registered one, or is refused by name."""

import copy
import io
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from spectral_param import (
    Band,
    SVDParametrization,
    register_svd_parametrization,
    remove_svd_parametrization,
    singular_values,
    svd_parametrizations,
)
from tests.reference import relative


def layer(p=4, q=5, **kwargs):
    return register_svd_parametrization(nn.Linear(q, p), **kwargs)


def only(module):
    [(_, parametrization)] = svd_parametrizations(module)
    return parametrization


# ---------------------------------------------------------------------------------------------------------- gradients


def test_gradients_reach_all_factors_after_any_change_of_mode():
    lstm = nn.LSTM(3, 4)
    register_svd_parametrization(lstm, "weight_hh_l0", chunks=4)
    x = torch.randn(5, 2, 3)
    lstm.eval()
    with torch.no_grad():
        lstm(x)
    with torch.inference_mode():
        lstm(x)
    lstm.train()
    lstm(x)[0].sum().backward()
    assert all(f.grad is not None and f.grad.abs().sum() > 0 for f in only(lstm).factors)


class ReadsTwice(nn.Linear):
    """Reads its weight without a graph before it reads it with one."""

    def forward(self, x):
        with torch.no_grad():
            scale = self.weight.norm()
        return super().forward(x) / scale


def test_a_read_without_gradient_within_a_forward_does_not_hide_the_next():
    module = register_svd_parametrization(ReadsTwice(5, 4))
    module(torch.randn(2, 5)).sum().backward()
    assert only(module).factors[1].grad.abs().sum() > 0


def test_per_sample_gradients():
    module, x = layer(reflectors=3, init="orthogonal"), torch.randn(6, 5)
    parameters = dict(module.named_parameters())

    def loss(parameters, x):
        return functional_call(module, parameters, (x,)).square().sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(per_sample[name].sum(0), parameter.grad, rtol=1e-4, atol=1e-4)


def test_functional_call_of_a_recurrent_module_leaves_no_trace():
    lstm = nn.LSTM(3, 4)
    register_svd_parametrization(lstm, "weight_hh_l0", chunks=4)
    x = torch.randn(5, 2, 3)
    before = lstm(x)[0]
    others = {name: torch.randn_like(p) for name, p in lstm.named_parameters()}
    swapped = functional_call(lstm, others, (x,))[0]
    assert torch.equal(lstm(x)[0], before)
    with torch.no_grad():
        for name, p in lstm.named_parameters():
            p.copy_(others[name])
    torch.testing.assert_close(lstm(x)[0], swapped)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    module = nn.Sequential(layer(5, 5), nn.Tanh(), layer(5, 5))
    x = torch.randn(2, 5, requires_grad=True)
    module(x).sum().backward()
    want = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    checkpoint(module, x, use_reentrant=reentrant).sum().backward()
    for parameter, gradient in zip(module.parameters(), want, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_an_exception_in_a_forward_leaves_nothing_behind():
    module, x = layer(5, 4), torch.randn(2, 4)
    before = module.weight.detach().clone()
    with pytest.raises(Exception, match=r".*"):
        module(torch.randn(2, 7))
    module.weight = 2 * before
    torch.testing.assert_close(module.weight, 2 * before)
    torch.testing.assert_close(module(x), nn.functional.linear(x, 2 * before, module.bias))


def test_threads_do_not_see_each_others_weights():
    module, x = layer(30, 30), torch.randn(2, 30)
    want, results = module(x), []

    def work(i):
        with torch.set_grad_enabled(i % 2 == 0):
            results.extend((i, module(x)) for _ in range(20))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    for i, output in results:
        assert torch.equal(output, want)
        assert output.requires_grad == (i % 2 == 0)


# ---------------------------------------------------------------------------------------------------------- attention


@pytest.fixture
def evaluations(monkeypatch):
    counts = {}
    forward = SVDParametrization.forward

    def counting(self, *factors, **way):
        counts[id(self)] = counts.get(id(self), 0) + 1
        return forward(self, *factors, **way)

    monkeypatch.setattr(SVDParametrization, "forward", counting)
    return counts


@pytest.mark.parametrize("training", [True, False])
def test_attention_reads_its_weight_once(evaluations, training):
    attention = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    register_svd_parametrization(attention, "in_proj_weight", chunks=3)
    evaluations.clear()
    x = torch.randn(2, 5, 8)
    with torch.set_grad_enabled(training):
        attention(x, x, x, need_weights=False)
    assert list(evaluations.values()) == [1]


def test_the_fast_path_of_a_transformer_is_taken_and_right(monkeypatch):
    plain = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    module = copy.deepcopy(plain)
    register_svd_parametrization(module.self_attn, "in_proj_weight", chunks=3)
    register_svd_parametrization(module.self_attn.out_proj)
    register_svd_parametrization(module.linear1)
    calls, fast = [], torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a: calls.append(0) or fast(*a))
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 2
    torch.testing.assert_close(module(x), plain(x), rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------------------- copies, averages


def test_averaging_over_a_run_keeps_the_band_and_stays_near():
    """Factors move little from step to step, so their average is a weight in between, with σ in the band."""
    model = nn.Sequential(layer(8, 8, sigma=Band(0.1), init="orthogonal"), nn.Tanh(), layer(8, 8))
    model(torch.randn(2, 8)).sum().backward()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    of_weights = {i: model[i].weight.detach().clone() for i in (0, 2)}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 8), torch.randn(64, 8)
    for _ in range(50):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)
        for i, mean in of_weights.items():
            mean.lerp_(model[i].weight.detach(), 0.1)
    for i in (0, 2):
        assert relative(average.module[i].weight, of_weights[i]) < 0.01
    values = torch.linalg.svdvals(average.module[0].weight)
    assert (values > 0.9 - 1e-5).all()
    assert (values < 1.1 + 1e-5).all()


# ----------------------------------------------------------------------------------------------------------- loading


def test_a_plain_checkpoint_that_does_not_fit_is_reported_and_changes_nothing():
    module = nn.Sequential(layer())
    before = module[0].weight.detach().clone()
    for wrong, message in (
        (torch.ones(5, 4), r"size mismatch for 0.weight: copying a param with shape torch.Size\(\[5, 4\]\)"),
        (torch.full((4, 5), torch.nan), "0.weight: weight: expected finite"),
    ):
        with pytest.raises(RuntimeError, match=message):
            module.load_state_dict({"0.weight": wrong, "0.bias": torch.zeros(4)})
        assert torch.equal(module[0].weight, before)


def test_missing_and_unexpected_keys_are_torchs():
    module = layer()
    report = module.load_state_dict({"bias": torch.zeros(4), "other": torch.ones(1)}, strict=False)
    assert report.missing_keys == [f"parametrizations.weight.original{i}" for i in range(3)]
    assert report.unexpected_keys == ["other"]
    assert module.load_state_dict({"weight": torch.eye(4, 5)}, strict=False).missing_keys == ["bias"]
    torch.testing.assert_close(module.weight, torch.eye(4, 5))


def test_levels_of_a_map_survive_a_plain_checkpoint():
    module = layer(sigma=Band(torch.full((4,), 0.1), torch.ones(4)), init="orthogonal")
    weight = module.weight.detach().clone()
    assert not module.load_state_dict({"weight": weight, "bias": torch.zeros(4)}).missing_keys
    torch.testing.assert_close(module.weight, weight, rtol=0, atol=1e-5)


def test_a_folded_model_loads_where_the_plain_one_did():
    plain = nn.Sequential(nn.Linear(5, 4))
    registered = nn.Sequential(layer())
    plain.load_state_dict(remove_svd_parametrization(registered).state_dict())
    torch.testing.assert_close(plain[0].weight, registered[0].weight)


@pytest.mark.parametrize("init", ["weight", "orthogonal"])
def test_the_meta_device(init):
    with torch.device("meta"):
        module = layer(sigma=Band(0.1), init=init)
    assert module.weight.is_meta
    source = layer(sigma=Band(0.1), init="orthogonal")
    assigned = copy.deepcopy(module)
    assigned.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(assigned.weight, source.weight)
    module.to_empty(device="cpu").reset_parameters()
    values = singular_values(module)
    assert (values > 0.9).all()
    assert (values < 1.1).all()


@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16, "meta"])
@pytest.mark.parametrize("of", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4), lambda: nn.Conv1d(4, 4, 3), lambda: nn.LSTM(4, 4)])
def test_an_assigned_checkpoint_brings_its_dtype(make, of, to):
    name = "weight_hh_l0" if isinstance(make(), nn.LSTM) else "weight"
    source = register_svd_parametrization(make().to(of), name)
    with torch.device("meta" if to == "meta" else "cpu"):
        target = register_svd_parametrization(make() if to == "meta" else make().to(to), name)
    buffer = io.BytesIO()
    torch.save(source.state_dict(), buffer)
    buffer.seek(0)
    target.load_state_dict(torch.load(buffer, weights_only=True), assign=True)
    assert getattr(target, name).dtype == of
    assert torch.equal(getattr(target, name), getattr(source, name))
    x = torch.randn(3, 4, 4, dtype=of)
    got, want = (run(x)[0] if isinstance(run, nn.LSTM) else run(x) for run in (target, source))
    assert torch.equal(got, want)


def test_what_is_not_assigned_or_was_cast_by_hand_brings_no_dtype():
    source = nn.Sequential(layer(), layer()).bfloat16().state_dict()
    cast = copy.copy(source)
    for name in cast:
        cast[name] = cast[name].float()
    model = nn.Sequential(layer(), layer())
    model.load_state_dict(cast, assign=True)
    assert model[0].weight.dtype == torch.float32
    partial = copy.copy(source)
    for name in source:
        if name.startswith("0"):
            del partial[name]
    model = nn.Sequential(layer(), layer())
    model.load_state_dict(partial, assign=True, strict=False)
    assert (model[0].weight.dtype, model[1].weight.dtype) == (torch.float32, torch.bfloat16)


# --------------------------------------------------------------------------------------------------- writes, attributes


def zero_through_init(module):
    nn.init.zeros_(module.weight)


def zero_through_data(module):
    module.weight.data.zero_()


def copy_without_grad(module):
    with torch.no_grad():
        module.weight.copy_(torch.zeros(4, 5))


@pytest.mark.parametrize("write", [zero_through_init, zero_through_data, copy_without_grad])
@pytest.mark.parametrize("read", [lambda m: m.weight, lambda m: m(torch.ones(1, 5))])
def test_an_in_place_write_is_never_silent(write, read):
    module = layer()
    before = module.weight.detach().clone()
    write(module)
    with pytest.warns(UserWarning, match="weight: was changed in place .* assign to it instead"):
        read(module)
    assert torch.equal(module.weight, before)


def test_reading_alone_warns_of_nothing():
    module = layer()
    for _ in range(3):
        module.weight.sum().backward()
        module(torch.ones(1, 5))
        module.weight = module.weight.detach() * 2
        module.weight.detach().clone().zero_()


def test_attributes_of_the_parameter_are_carried_over_and_back():
    module = nn.Linear(5, 4)
    module.weight.no_decay = True
    register_svd_parametrization(module)
    assert all(f.no_decay for f in only(module).factors)
    assert remove_svd_parametrization(module).weight.no_decay


def test_gradients_and_hooks_that_are_lost_are_named():
    module = nn.Linear(5, 4)
    module.weight.grad = torch.ones(4, 5)
    with pytest.warns(UserWarning, match="the gradient of the weight cannot be carried over"):
        register_svd_parametrization(module)
    module = nn.Linear(5, 4)
    module.weight.register_hook(lambda g: g)
    with pytest.warns(UserWarning, match="the hooks of the weight cannot be carried over"):
        register_svd_parametrization(module)
    module = nn.Linear(5, 4)
    module.weight.grad = torch.ones(4, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            register_svd_parametrization(module)
    assert type(module) is nn.Linear
    assert "weight" in dict(module.named_parameters())


def test_frozen_weights_stay_frozen():
    module = nn.Linear(5, 4)
    module.weight.requires_grad_(False)
    register_svd_parametrization(module)
    assert not module.weight.requires_grad
    assert not remove_svd_parametrization(module).weight.requires_grad


def test_tied_weights_are_refused():
    encoder, decoder = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
    decoder.weight = encoder.weight
    for module in (encoder, decoder):
        with pytest.raises(ValueError, match="'weight' of .* is tied to 'weight' of (Linear|Embedding)"):
            register_svd_parametrization(module)
    assert decoder.weight is encoder.weight


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"sparse": True}])
def test_embeddings_that_need_a_plain_weight_are_refused(options):
    with pytest.raises(ValueError, match="an embedding with"):
        register_svd_parametrization(nn.Embedding(7, 5, **options))


# ------------------------------------------------------------------------------------------------ torch's own mechanism


def test_torch_sees_an_ordinary_parametrization():
    module = layer()
    assert parametrize.is_parametrized(module, "weight")
    assert parametrize.type_before_parametrizations(module) is nn.Linear
    assert isinstance(module, nn.Linear)
    parametrize.remove_parametrizations(module, "weight")
    assert type(module) is nn.Linear
    lstm = nn.LSTM(3, 4)
    register_svd_parametrization(lstm, "weight_hh_l0", chunks=4)
    x = torch.randn(5, 2, 3)
    want = lstm(x)[0]
    parametrize.remove_parametrizations(lstm, "weight_hh_l0")
    torch.testing.assert_close(lstm(x)[0], want)


class Mask(nn.Module):
    def forward(self, weight):
        return weight * (torch.arange(weight.shape[1]) > 0)

    def right_inverse(self, weight):
        return weight


@pytest.mark.parametrize(
    "on_top",
    [lambda m: parametrizations.spectral_norm(m), lambda m: parametrize.register_parametrization(m, "weight", Mask())],
)
def test_another_parametrization_on_top(on_top):
    module = layer()
    on_top(module)
    assert relative(singular_values(module), torch.linalg.svdvals(module.weight)) < 1e-6
    module(torch.randn(2, 5)).sum().backward()
    twin = copy.deepcopy(module)
    assert torch.equal(twin.weight, module.weight)
    remove_svd_parametrization(twin)
    torch.testing.assert_close(twin.weight, module.weight)


def test_channels_last_kernels():
    conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
    twin = copy.deepcopy(conv)
    register_svd_parametrization(conv)
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    torch.testing.assert_close(conv(x), twin(x), rtol=1e-4, atol=1e-5)
    conv.to(memory_format=torch.channels_last)(x).sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripting_is_refused_with_the_remedy():
    with pytest.raises(RuntimeError, match="remove_svd_parametrization"):
        torch.jit.script(nn.Sequential(layer()))


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_quantization_is_refused_with_the_remedy():
    with pytest.raises(RuntimeError, match="remove_svd_parametrization"):
        torch.ao.quantization.quantize_dynamic(nn.Sequential(layer()), {nn.Linear})


def test_export():
    module, x = layer(), torch.randn(2, 5)
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), module(x))


# ------------------------------------------------------------------------------------------------- training only a part


@pytest.mark.parametrize(("train", "trained"), [("all", [0, 1, 2]), ("sigma", [1]), ("reflectors", [0, 2])])
def test_only_the_part_asked_for_is_trained(train, trained):
    module = layer(6, 5, train=train)
    twin = copy.deepcopy(module)
    for f in only(twin).factors:
        f.requires_grad_(True)
    x = torch.randn(3, 5)
    for m in (module, twin):
        m(x).square().sum().backward()
    for i, (factor, free) in enumerate(zip(only(module).factors, only(twin).factors, strict=True)):
        assert factor.requires_grad == (i in trained)
        if i in trained:
            torch.testing.assert_close(factor.grad, free.grad, rtol=1e-4, atol=1e-5)
    assert remove_svd_parametrization(module).weight.requires_grad


def test_frozen_turns_follow_every_change():
    module = layer(train="sigma")
    other = layer()
    x = torch.randn(3, 5)
    module(x)
    module.load_state_dict(other.state_dict())
    assert relative(module(x), other(x)) < 1e-5
    module.weight = torch.eye(4, 5)
    assert relative(module.weight, torch.eye(4, 5)) < 1e-6
    assert relative(module.double().weight, torch.eye(4, 5)) < 1e-6
    twin = copy.deepcopy(module)
    twin.weight = 2 * torch.eye(4, 5, dtype=torch.float64)
    assert relative(module.weight, torch.eye(4, 5)) < 1e-6
    with torch.inference_mode():
        module(x.double())
    module(x.double()).sum().backward()


def test_training_sigma_needs_a_sigma():
    from spectral_param import Fixed

    with pytest.raises(ValueError, match="^train: 'sigma' leaves nothing"):
        layer(sigma=Fixed(), init="orthogonal", train="sigma")
    with pytest.raises(ValueError, match="^train: expected"):
        layer(train="u")
