import contextlib

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch import callbacks as of_lightning
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader, TensorDataset

from spectral_param import register_svd_parametrization, svd_parametrizations, together
from spectral_param.callbacks import (
    BandSchedule,
    GradientNormMonitor,
    SpectralClip,
    SpectralMonitor,
    SpectralPenalty,
)
from spectral_param.nn import SpectralRNN, SVDLinear
from spectral_param.registration.injection.matrix_free import thin_factors
from spectral_param.spectrum.patterns import owner_of
from tests.spectral_param.callbacks.small_runs import Regression, Sequences, sequences, trainer, vectors
from tests.versions import averaging_steps


class Truthful(Sequences):
    """Says what the norms are: each step is run once more from leaves of its own."""

    def __init__(self, plain=None):
        super().__init__(plain)
        self.truth = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        twin = nn.LSTM(5, 4, batch_first=True)
        twin.load_state_dict(self.plain.state_dict())
        h0 = self.rnn.initial_state.detach().expand(len(x), 5).clone().requires_grad_()
        h, c = torch.zeros(2, 1, len(x), 4).requires_grad_().unbind()
        weight = self.rnn.weight_hh_l0.detach().requires_grad_()
        states = [h0]
        for t in range(x.shape[1]):
            pre = x[:, t] @ self.rnn.weight_ih_l0.T + states[-1] @ weight.T + self.rnn.bias_l0
            states.append(pre.tanh())
        output, _ = twin(torch.stack(states[1:], 1), (h, c))
        loss = nn.functional.mse_loss(output[:, -1] @ self.head.weight.T + self.head.bias, y)
        self.truth.append([g.norm() for g in torch.autograd.grad(loss, [h0, h, c, weight, states[4]])])
        return super().training_step(batch, batch_idx)


def check(monitor, truth, rtol=1e-4):
    names = ("rnn.h", "plain.h", "plain.c", "rnn.weight_hh_l0")
    found = torch.stack([monitor.history[name][:, 0] for name in names] + [monitor.history["rnn.h"][:, 1]], dim=1)
    torch.testing.assert_close(found, torch.tensor(truth), rtol=rtol, atol=1e-9)


def test_norms_are_those_of_autograd(tmp_path):
    model, monitor = Truthful(), GradientNormMonitor(times=(0, 4), every_n_steps=1)
    trainer(tmp_path, monitor).fit(model, sequences())
    assert monitor.history.steps == list(range(6))
    check(monitor, model.truth)
    assert monitor.history["loss"][:, 0].tolist() == pytest.approx(model.losses)


def test_loss_scaling_of_16_mixed_and_accumulation_are_taken_out(tmp_path):
    model, monitor = Truthful(), GradientNormMonitor(times=(0, 4), every_n_steps=1)
    trainer(tmp_path, monitor, accumulate_grad_batches=3).fit(model, sequences())
    assert monitor.history.steps == [0, 1]
    check(monitor, model.truth[::3])
    assert monitor.history["loss"][:, 0].tolist() == pytest.approx(model.losses[::3])

    class InFloat32(MixedPrecision):  # the scaling alone, which half precision would blur
        def forward_context(self):
            return torch.autocast("cpu", enabled=False)

    plugin = InFloat32("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**10))
    model, monitor = Truthful(), GradientNormMonitor(times=(0, 4), every_n_steps=1)
    trainer(tmp_path, monitor, plugins=[plugin]).fit(model, sequences())
    check(monitor, model.truth)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_is_not_touched(tmp_path, precision):
    def run(*callbacks):
        torch.manual_seed(2)
        model = Sequences(nn.LSTM(5, 4, 2, batch_first=True, dropout=0.5))
        torch.manual_seed(3)
        trainer(tmp_path, *callbacks, precision=precision, max_epochs=2).fit(model, sequences())
        return model

    with pytest.warns(UserWarning, match="plain is read at t = 0 alone"):
        watched = run(GradientNormMonitor(times=5, layers="head", every_n_steps=1))
    alone = run()
    assert watched.losses == alone.losses
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True))


def test_bf16_mixed_is_near_float32(tmp_path):
    found = []
    for precision in ("32-true", "bf16-mixed"):
        monitor = GradientNormMonitor(times=5)
        trainer(tmp_path, monitor, precision=precision).fit(Sequences(), sequences())
        found.append(monitor.history["rnn.h"][0])
    torch.testing.assert_close(*found, rtol=0.1, atol=1e-4)


def test_names_of_metrics_and_stacks(tmp_path):
    monitor = GradientNormMonitor(times=(0, -1, 100), layers=["head"])
    run = trainer(tmp_path, monitor)
    run.fit(Sequences(nn.LSTM(5, 4, 2, batch_first=True)), sequences())
    states = [f"plain.{s}_l{k}.t{t}" for s in "hc" for k in range(2) for t in (0, -1)]
    expected = ["rnn.h.t0", "rnn.h.t-1", *states, "head.output", "rnn.weight_hh_l0"]
    assert set(run.callback_metrics) == {f"grad_norm-{name}" for name in expected}
    assert monitor.history["rnn.h"].isnan()[0].tolist() == [False, False, True]
    assert run.callback_metrics["grad_norm-plain.h_l1.t-1"] > run.callback_metrics["grad_norm-plain.h_l0.t-1"] == 0


def test_output_of_a_layer(tmp_path):
    class Model(Regression):
        norms = ()

        def forward(self, x):
            hidden = self.first(x)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: setattr(self, "norms", (*self.norms, gradient.norm().item())))
            return self.second(torch.tanh(hidden))

    model, monitor = Model(), GradientNormMonitor(layers="fir*", every_n_steps=1)
    trainer(tmp_path, monitor).fit(model, vectors())
    assert monitor.history["first.output"][:, 0].tolist() == pytest.approx(model.norms)


def test_a_weight_used_twice_has_the_gradient_of_both_uses(tmp_path):
    class Twice(Regression):
        def forward(self, x):
            return self.second(torch.tanh(self.first(x)) + self.first(x + 1))

    model, monitor = Twice(), GradientNormMonitor(every_n_steps=1)
    trainer(tmp_path, monitor, max_steps=1).fit(model, vectors())
    twin = Twice()
    x, y = next(iter(vectors()))
    weight = twin.first.weight.detach().requires_grad_()
    both = torch.tanh(nn.functional.linear(x, weight, twin.first.bias))
    loss = nn.functional.mse_loss(twin.second(both + nn.functional.linear(x + 1, weight, twin.first.bias)), y)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert monitor.history["first.weight"].item() == pytest.approx(gradient.norm().item())


def test_recomputation_in_the_backward_is_not_counted(tmp_path):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Sequences):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    found = []
    for kind in (Sequences, Checkpointed):
        monitor = GradientNormMonitor(times=3)
        trainer(tmp_path, monitor).fit(kind(), sequences())
        found.append([monitor.history[name][0] for name in ("rnn.h", "plain.c", "rnn.weight_hh_l0")])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo at self.log
def test_compiled_model(tmp_path):
    class Plain(Sequences):
        def training_step(self, batch, batch_idx):
            x, y = batch
            return nn.functional.mse_loss(self(x), y)

    found = []
    for prepare in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        torch.manual_seed(2)
        model = Plain(nn.RNN(5, 4, batch_first=True))
        monitor = GradientNormMonitor(times=4, every_n_steps=3)
        trainer(tmp_path, monitor).fit(prepare(model), sequences())
        found.append([monitor.history[name] for name in ("rnn.h", "plain.h", "rnn.weight_hh_l0")])
    assert len(found[1][0]) == 2
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_manual_optimization_watches_the_first_backward(tmp_path):
    class Manual(Truthful):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for _ in range(2):
                self.optimizers().zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                self.optimizers().step()

    model, monitor = Manual(), GradientNormMonitor(times=(0, 4), every_n_steps=2)
    trainer(tmp_path, monitor).fit(model, sequences())
    assert monitor.history.steps == [0, 2, 4]
    check(monitor, model.truth[::4])


@averaging_steps
def test_no_hook_stays(tmp_path):
    class Failing(Sequences):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                self(batch[0])
                raise KeyError
            return super().training_step(batch, batch_idx)

    for kind in (Sequences, Failing):
        model = kind()
        monitor = GradientNormMonitor(layers="head", every_n_steps=1)
        try:
            trainer(tmp_path, monitor, of_lightning.EMAWeightAveraging()).fit(model, sequences())
        except KeyError:
            assert kind is Failing
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_resumes_its_history(tmp_path):
    first, second = (GradientNormMonitor(times=3, every_n_steps=2) for _ in range(2))
    run = trainer(tmp_path, first)
    run.fit(Sequences(), sequences())
    run.save_checkpoint(tmp_path / "end.ckpt")
    state = torch.load(tmp_path / "end.ckpt", weights_only=True)["callbacks"][second.state_key]
    second.load_state_dict(state)
    assert second.history.steps == [0, 2, 4]
    assert torch.equal(second.history["plain.c"], first.history["plain.c"])
    assert second.time_axes == {name: [0, 4, 9] for name in ("rnn.h", "plain.h", "plain.c")}


def test_a_plain_model_without_any_weight_in_svd_form(tmp_path):
    model = Sequences()
    model.rnn = nn.RNN(2, 5, batch_first=True)
    monitor = GradientNormMonitor(weights=())
    trainer(tmp_path, monitor).fit(model, sequences())
    assert monitor.history.names == ["rnn.h", "plain.h", "plain.c", "loss"]


def test_weight_in_svd_form_of_an_lstm(tmp_path):
    lstm = register_svd_parametrization(nn.LSTM(5, 4, batch_first=True), "weight_hh_l0", chunks=4)
    model = Sequences(lstm)
    twin = nn.LSTM(5, 4, batch_first=True)
    twin.load_state_dict({name: getattr(lstm, name).detach() for name in twin.state_dict()})
    x, y = next(iter(sequences()))
    loss = nn.functional.mse_loss(model.head(twin(model.rnn(x)[0])[0][:, -1]), y)
    (gradient,) = torch.autograd.grad(loss, twin.weight_hh_l0)
    monitor = GradientNormMonitor(every_n_steps=1)
    trainer(tmp_path, monitor, max_steps=1).fit(model, sequences())
    assert monitor.history["plain.weight_hh_l0"].item() == pytest.approx(gradient.norm().item(), rel=1e-4)


@pytest.mark.parametrize(
    ("times", "error"), [((), ValueError), (0, ValueError), ((0.5,), TypeError), (("end",), TypeError)]
)
def test_bad_times(times, error):
    with pytest.raises(error, match="times: expected"):
        GradientNormMonitor(times=times)


def test_says_what_is_not_there(tmp_path):
    for option, what in (("recurrent", "recurrent layer"), ("layers", "module"), ("weights", "weight in SVD form")):
        with pytest.warns(UserWarning, match=f"{option}: third matches no {what} of the model"):
            trainer(tmp_path, GradientNormMonitor(**{option: "third"})).fit(Sequences(), sequences())


class Wide(Sequences):
    """Layers so wide, with so few reflectors, that they do without W."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.rnn = SpectralRNN(2, 64, batch_first=True, nonlinearity="relu", reflectors=4, init="orthogonal")
        self.plain = register_svd_parametrization(
            nn.RNN(64, 4, batch_first=True), "weight_ih_l0", reflectors=2, init="orthogonal"
        )
        self.deep = register_svd_parametrization(nn.Linear(4, 64), init="orthogonal")
        self.wide = register_svd_parametrization(nn.Linear(64, 64), reflectors=2, init="orthogonal")
        self.free = SVDLinear(64, 64, reflectors=2)
        self.last = nn.MultiheadAttention(64, 2, batch_first=True)
        register_svd_parametrization(self.last.out_proj, init="orthogonal")
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        states = self.plain(self.rnn(x)[0])[0]
        hidden = self.wide(self.deep(states).relu()) + self.free(input=self.deep(states[:, :1]))
        return self.head(self.last(hidden, hidden, hidden)[0][:, -1])


def test_layers_that_do_without_their_weight_still_do_and_have_its_gradient(tmp_path):
    watched, alone = Wide(), Wide()
    assert thin_factors(watched.rnn, "weight_hh_l0", torch.zeros(4, 64)) is not None
    monitor = GradientNormMonitor(recurrent=(), every_n_steps=1)
    trainer(tmp_path, monitor).fit(watched, sequences(length=5))
    trainer(tmp_path).fit(alone, sequences(length=5))
    assert watched.losses == alone.losses
    assert all(torch.equal(a, b) for a, b in zip(watched.parameters(), alone.parameters(), strict=True))

    twin = Wide()
    x, y = next(iter(sequences(length=5)))
    twin.free.forward = lambda input: nn.functional.linear(input, twin.free.weight, twin.free.bias)
    names = [name for name, _ in svd_parametrizations(twin)]
    with torch.nn.utils.parametrize.cached():
        weights = [getattr(*owner_of(twin, name)) for name in names]
        expected = torch.autograd.grad(nn.functional.mse_loss(twin(x), y), weights)
    assert len(names) == 6
    for name, gradient in zip(names, expected, strict=True):
        assert monitor.history[name][0].item() == pytest.approx(gradient.norm().item(), rel=1e-3)


def test_numbers_of_numpy_are_numbers(tmp_path):
    monitors = (
        GradientNormMonitor(times=np.arange(2), every_n_steps=np.int64(2)),
        GradientNormMonitor(times=np.int64(3), every_n_steps=2),
        SpectralMonitor(center=np.float32(0.5), every_n_epochs=np.int32(1)),
        BandSchedule(radius={0: np.float32(0.25), np.int64(4): np.float64(0.5)}),
        SpectralClip(np.float32(0.25), np.float64(2)),
        SpectralPenalty(np.float32(0.1)),
    )
    assert monitors[0].times == (0, 1)
    assert monitors[1].times == 3
    assert "int64" not in "".join(monitor.state_key for monitor in monitors)
    run = trainer(tmp_path, *monitors)
    run.fit(Sequences(), sequences())
    run.save_checkpoint(tmp_path / "last.ckpt")
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    for wrong in (1.5, "1", [0.5], [np.float64(1)]):
        with pytest.raises(TypeError, match="^times: expected integers"):
            GradientNormMonitor(times=wrong)


def test_two_monitors_of_the_same_weights_read_the_same_and_leave_nothing(tmp_path):
    model = Sequences()
    monitors = GradientNormMonitor(every_n_steps=1), GradientNormMonitor(every_n_steps=2, recurrent=())
    trainer(tmp_path, *monitors).fit(model, sequences())
    first, second = (monitor.history["rnn.weight_hh_l0"] for monitor in monitors)
    assert torch.equal(first[::2], second)
    assert all("forward" not in vars(parametrization) for _, parametrization in svd_parametrizations(model))


def test_a_layer_called_twice_has_the_gradients_of_both_outputs(tmp_path):
    """As states have over several calls: their squares add up, whatever their shapes."""

    class Twice(Regression):
        def forward(self, x):
            return self.second(torch.tanh(self.first(x)) + self.first(x + 1))

    model, monitor = Twice(), GradientNormMonitor(layers="first", every_n_steps=1)
    trainer(tmp_path, monitor, max_steps=1).fit(model, vectors())
    twin, (x, y) = Twice(), next(iter(vectors()))
    one, other = (twin.first(x).detach().requires_grad_() for x in (x, x + 1))
    loss = nn.functional.mse_loss(twin.second(torch.tanh(one) + other), y)
    both = torch.stack(torch.autograd.grad(loss, [one, other]))
    assert monitor.history["first.output"].item() == pytest.approx(both.norm().item())


@pytest.mark.parametrize("when", ["in the forward", "before the backward"])
def test_a_fit_after_an_interrupted_fit_has_the_norms_of_its_own_steps(tmp_path, when):
    class Interrupted(Truthful):
        stops = True

        def stop(self, at):
            if self.stops and at == when and len(self.truth) == 1:  # in the first step
                raise RuntimeError(f"stopped {at}")

        def forward(self, x):
            result = super().forward(x)
            self.stop("in the forward")
            return result

        def on_before_backward(self, loss):
            self.stop("before the backward")

    model, monitor = Interrupted(), GradientNormMonitor(times=(0, 4), every_n_steps=1)
    with pytest.raises(RuntimeError, match=f"stopped {when}"):
        trainer(tmp_path, monitor).fit(model, sequences())
    model.stops, model.truth = False, []
    trainer(tmp_path, monitor).fit(model, sequences())
    check(monitor, model.truth)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class Told(LightningModule):
    """A loss of one layer, and what ‖∂L/∂W‖ is by autograd, for a plain layer of the same weights."""

    def __init__(self, loss, recurrent=False, reflectors=2):
        super().__init__()
        torch.manual_seed(0)
        self.a = plain_layer(recurrent)
        self.name = "weight_hh_l0" if recurrent else "weight"
        register_svd_parametrization(self.a, self.name, reflectors=reflectors, init="orthogonal")
        self.loss = loss
        self.truth = []

    def training_step(self, batch, batch_idx):
        plain = plain_layer(isinstance(self.a, nn.RNN))
        plain.load_state_dict({name: getattr(self.a, name).detach() for name, _ in plain.named_parameters()})
        value = self.loss(plain, *batch, lambda model: contextlib.nullcontext())
        [gradient] = torch.autograd.grad(value, getattr(plain, self.name))
        self.truth.append(gradient.norm().item())
        return self.loss(self.a, *batch, together)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def plain_layer(recurrent):
    return nn.RNN(6, 6, batch_first=True) if recurrent else nn.Linear(6, 6)


def rows(*shape):
    return DataLoader(TensorDataset(torch.randn(4, *shape)), batch_size=4)


def output_of(layer, x):
    return layer(x)[0] if isinstance(layer, nn.RNN) else layer(x)


def weight_of(layer):
    return layer.weight_hh_l0 if isinstance(layer, nn.RNN) else layer.weight


def weight_first(layer, x, keeping):
    with keeping(layer):
        of_weight = weight_of(layer).square().sum()
        return output_of(layer, x).square().sum() + of_weight


def forward_first(layer, x, keeping):
    with keeping(layer):
        return output_of(layer, x).square().sum() + weight_of(layer).square().sum()


def in_cached(loss):
    return lambda layer, x, keeping: loss(layer, x, lambda model: parametrize.cached())


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("loss", [weight_first, forward_first])
@pytest.mark.parametrize("keeping", [lambda loss: loss, in_cached], ids=["together", "cached"])
def test_a_weight_that_is_kept_for_all_who_read_it_is_counted_once(tmp_path, recurrent, loss, keeping):
    model, monitor = Told(keeping(loss), recurrent), GradientNormMonitor(every_n_steps=1)
    trainer(tmp_path, monitor).fit(model, rows(3, 6) if recurrent else rows(6))
    assert monitor.history[f"a.{model.name}"][:, 0].tolist() == pytest.approx(model.truth, rel=1e-4)


def looked_at(layer, x, keeping):
    """Takes a gradient on the way, for its own sake."""
    x = x.clone().requires_grad_()
    y = layer(x)
    torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    return y.square().sum()


def penalized(layer, x, keeping):
    x = x.clone().requires_grad_()
    y = output_of(layer, x)
    [slope] = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    return y.square().sum() + slope.square().sum()


def test_a_gradient_that_is_taken_on_the_way_is_none_of_the_loss(tmp_path):
    model, monitor = Told(looked_at), GradientNormMonitor(every_n_steps=1, layers="a")
    data = rows(6)
    trainer(tmp_path, monitor).fit(model, data)
    assert monitor.history["a.weight"][:, 0].tolist() == pytest.approx(model.truth, rel=1e-4)
    y = Told(looked_at).a(*next(iter(data)))
    assert monitor.history["a.output"].item() == pytest.approx(2 * y.norm().item(), rel=1e-4)


def test_what_a_penalty_on_gradients_hides_is_left_out_with_a_word(tmp_path):
    model, monitor = Told(penalized), GradientNormMonitor(every_n_steps=1, layers="a")
    with pytest.warns(UserWarning, match=r"^a\.weight: not read, since training_step differentiates gradients"):
        trainer(tmp_path, monitor).fit(model, rows(6))
    assert monitor.history["a.weight"].isnan().all()
    assert monitor.history["a.output"].isfinite().all()
    recurrent, monitor = Told(penalized, recurrent=True), GradientNormMonitor(every_n_steps=1)
    with pytest.warns(UserWarning, match=r"^a: not read, since training_step differentiates"):
        trainer(tmp_path, monitor).fit(recurrent, rows(3, 6))
    assert monitor.history["a.weight_hh_l0"].isnan().all()
    assert monitor.history["a.h"].isnan().all()


@pytest.mark.parametrize("shape", [(6,), (3, 6)])
def test_an_output_that_is_changed_in_place_is_heard(tmp_path, shape):
    def loss(layer, x, keeping):
        return layer(x).relu_().sum() + layer(2 * x).square().sum()

    model, monitor = Told(loss, reflectors=None), GradientNormMonitor(every_n_steps=1, layers="a")
    trainer(tmp_path, monitor).fit(model, rows(*shape))
    assert monitor.history["a.weight"][:, 0].tolist() == pytest.approx(model.truth, rel=1e-4)
    assert monitor.history["a.output"].isfinite().all()


def test_a_view_of_what_others_have_is_heard_for_itself_alone(tmp_path):
    class Model(Regression):
        def __init__(self):
            super().__init__()
            self.flat = nn.Flatten()

        def training_step(self, batch, batch_idx):
            h = self.first(batch[0]).unsqueeze(-1)
            return self.flat(h).sum() + 10 * h.sum()

    monitor = GradientNormMonitor(every_n_steps=1, layers="flat", weights=())
    trainer(tmp_path, monitor, max_steps=1).fit(Model(), vectors())
    assert monitor.history["flat.output"].item() == pytest.approx((len(next(iter(vectors()))[0]) * 4) ** 0.5)


def test_a_view_that_lost_its_hooks_is_left_out_with_a_word(tmp_path):
    class Model(Regression):
        def __init__(self):
            super().__init__()
            self.flat = nn.Flatten()

        def training_step(self, batch, batch_idx):
            return self.flat(self.first(batch[0]).unsqueeze(-1)).relu_().sum()

    monitor = GradientNormMonitor(every_n_steps=1, layers="flat", weights=())
    with pytest.warns(UserWarning, match=r"^flat\.output: not read, since what came out is a view"):
        trainer(tmp_path, monitor, max_steps=1).fit(Model(), vectors())
    assert monitor.history["flat.output"].isnan().all()


def test_outputs_of_several_calls_may_have_any_shapes(tmp_path):
    def loss(layer, x, keeping):
        return layer(x).sum() - layer(x[:1]).sum() + layer(x[:2]).sum()

    model, monitor = Told(loss), GradientNormMonitor(every_n_steps=1, layers="a", weights=())
    trainer(tmp_path, monitor).fit(model, rows(6))
    assert monitor.history["a.output"].item() == pytest.approx((7 * 6) ** 0.5)


@pytest.mark.parametrize("result", [None, {}, [], (), "text", (None, 1)])
def test_a_module_that_returns_something_else_is_passed_over(tmp_path, result):
    class Other(nn.Module):
        def forward(self, x):
            return result

    class Model(Regression):
        def __init__(self):
            super().__init__()
            self.other = Other()

        def training_step(self, batch, batch_idx):
            self.other(batch[0])
            return super().training_step(batch, batch_idx)

    monitor = GradientNormMonitor(every_n_steps=1, layers="other")
    trainer(tmp_path, monitor).fit(Model(), vectors(2))
    assert monitor.history["other.output"].isnan().all()


def test_sequences_of_several_lengths_are_told_once(tmp_path):
    def loss(layer, x, keeping):
        return layer(x[:, : len(x) + 1])[0].square().sum()

    data = DataLoader(TensorDataset(torch.randn(10, 6, 6)), batch_size=4)  # 4, 4 and 2 of them
    monitor = GradientNormMonitor(every_n_steps=1, times=3, weights=())
    with pytest.warns(UserWarning, match=r"^a: sequences have several lengths"):
        trainer(tmp_path, monitor).fit(Told(loss, recurrent=True), data)
