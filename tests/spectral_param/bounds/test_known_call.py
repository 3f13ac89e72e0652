"""A bound must not be false: what changes a call of a known module is refused."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize, spectral_norm, weight_norm

from spectral_param import Fixed, register_svd_parametrization
from spectral_param.bounds import (
    lipschitz_bound,
    mlp_generalization_gap,
    rnn_generalization_gap,
    unrolled_lipschitz_bounds,
)
from spectral_param.nn import Residual, SpectralRNN, SVDLinear

NUMBERS = {"input_norm": 1.0, "margin": 1.0, "samples": 1000}


class Skip(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Twice(nn.Linear):
    def __call__(self, x: Tensor) -> Tensor:
        return 2 * super().__call__(x)


class Standardised(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, 10 * weight, bias)


class Steep(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return 5 * super().forward(x)


class Decorated(nn.Linear):
    @functools.wraps(nn.Linear.forward)
    def forward(self, x: Tensor) -> Tensor:
        return 3 * nn.Linear.forward(self, x)


class MonteCarlo(nn.Dropout):
    def train(self, mode: bool = True) -> "MonteCarlo":
        return super().train()


class OwnSVD(SVDLinear):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * super().forward(x)


class OwnResidual(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class OwnScan(SpectralRNN):
    def _layers(self, x: Tensor, hx: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        return super()._layers(7 * x, hx)


class OwnRNN(nn.RNN):
    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().forward(9 * x, hx)


class Named(nn.Linear):
    """A name of its own and no more."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)

    def extra_repr(self) -> str:
        return "named"


def on_the_instance() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.forward = lambda x: 6 * nn.Linear.forward(layer, x)
    return layer


def registered(layer: nn.Module) -> nn.Module:
    return register_svd_parametrization(layer)


CHANGED = [
    (Skip(nn.Linear(3, 3)), "Skip with a 'forward' that is not Sequential's"),
    (Twice(3, 3), "Twice with a '__call__'"),
    (Standardised(3, 3, 1), "Standardised with a '_conv_forward'"),
    (Steep(), "Steep with a 'forward'"),
    (Decorated(3, 3), "Decorated with a 'forward'"),
    (registered(Decorated(3, 3)), "ParametrizedDecorated with a 'forward'"),
    (MonteCarlo(0.5), "MonteCarlo with a 'train'"),
    (OwnSVD(3, 3), "ParametrizedOwnSVD with a 'forward' that is not SVDLinear's"),
    (OwnResidual(nn.ReLU()), "OwnResidual with a 'forward' that is not Residual's"),
    (on_the_instance(), "Linear with a 'forward'"),
]


@pytest.mark.parametrize(("module", "words"), CHANGED, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("nested", [False, True])
def test_another_call_than_the_known_one_is_refused_and_named(module: nn.Module, words: str, nested: bool) -> None:
    with pytest.raises(TypeError, match=rf"module: no Lipschitz bound is known for {words}.*lipschitz_bound.register"):
        lipschitz_bound(nn.Sequential(nn.ReLU(), Residual(module)) if nested else module)


def test_the_block_of_issue_14_counts_once_it_is_a_residual() -> None:
    def block() -> nn.Module:
        return Residual(register_svd_parametrization(nn.Linear(6, 6), sigma=Fixed(), init="orthogonal"))

    net = nn.Sequential(block(), block(), block())
    jacobian = torch.autograd.functional.jacobian(net, torch.randn(6))
    assert torch.linalg.matrix_norm(jacobian, 2) <= lipschitz_bound(net)
    assert lipschitz_bound(net).item() == pytest.approx(8, rel=1e-4)


@pytest.mark.parametrize("wrap", [lambda layer: layer, registered])
def test_a_class_without_a_forward_of_its_own_has_its_base_s_bound(wrap: Callable[[nn.Module], nn.Module]) -> None:
    layer = wrap(Named(4))
    exact = torch.linalg.matrix_norm(layer.weight.detach(), 2).item()
    assert lipschitz_bound(layer).item() == pytest.approx(exact, rel=1e-5)


def test_a_bound_of_one_s_own_does_not_pass_to_a_class_that_overrides_its_forward() -> None:
    class Halve(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    class Triple(Halve):
        def forward(self, x: Tensor) -> Tensor:
            return 3 * x

    @lipschitz_bound.register
    def _(module: Halve) -> Tensor:
        return torch.tensor(0.5)

    assert lipschitz_bound(nn.Sequential(Halve())).item() == 0.5
    with pytest.raises(TypeError, match="Triple with a 'forward' that is not"):
        lipschitz_bound(Triple())
    lipschitz_bound.register(Triple, lambda module: torch.tensor(3.0))
    assert lipschitz_bound(Triple()).item() == 3.0


# --------------------------------------------------------------------------------------------------------------- hooks


@contextmanager
def listening(handle: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("wrap", [lambda layer: layer, registered])
def test_hooks_are_refused_until_they_are_gone(wrap: Callable[[nn.Module], nn.Module]) -> None:
    layer = wrap(nn.Linear(3, 3))
    hooks = [
        (layer.register_forward_hook, lambda module, args, output: 2 * output),
        (layer.register_forward_pre_hook, lambda module, args: (2 * args[0],)),
        (torch_module.register_module_forward_hook, lambda module, args, output: 2 * output),
        (torch_module.register_module_forward_pre_hook, lambda module, args: (2 * args[0],)),
    ]
    for register, hook in hooks:
        with listening(register(hook)), pytest.raises(TypeError, match="with forward hooks.*: remove them first"):
            lipschitz_bound(layer)
    assert lipschitz_bound(layer).item() > 0


@pytest.mark.parametrize("held", ["parametrizations.weight", "parametrizations.weight.0"])
def test_whoever_listens_to_the_svd_of_a_weight_is_told_of(held: str) -> None:
    layer = registered(nn.Linear(3, 3))
    hook = layer.get_submodule(held).register_forward_hook(lambda module, args, output: 2 * output)
    with listening(hook), pytest.raises(TypeError, match="module: expected 'weight' to be its SVD, .* hooks"):
        lipschitz_bound(layer)
    replaced = layer.get_submodule(held)
    replaced.forward = lambda *args: 2 * type(replaced).forward(replaced, *args)
    with pytest.raises(TypeError, match="module: expected 'weight' to be its SVD, got .* 'forward'"):
        lipschitz_bound(layer)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_hooks_that_compute_the_weight_are_refused() -> None:
    for old in (weight_norm, spectral_norm):
        with pytest.raises(TypeError, match="hooks"):
            lipschitz_bound(old(nn.Linear(3, 3)))


# ------------------------------------------------------------------------------------------- parametrizations of others


class Double(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Dropped(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return nn.functional.dropout(weight, 0.9, self.training)


@pytest.mark.parametrize("wrap", [lambda layer: layer, registered])
@pytest.mark.parametrize("on_top", [Double, Dropped])
def test_a_weight_is_read_as_evaluation_uses_it(wrap: Callable, on_top: type[nn.Module]) -> None:
    layer = parametrize.register_parametrization(wrap(nn.Linear(4, 4)), "weight", on_top())
    bound = lipschitz_bound(layer).item()
    assert layer.parametrizations.weight[-1].training
    exact = torch.linalg.matrix_norm(layer.eval().weight.detach(), 2).item()
    assert bound == pytest.approx(exact, rel=1e-5)


def test_reading_leaves_torch_s_spectral_norm_as_it_was() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    bound = lipschitz_bound(layer).item()
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    assert bound == pytest.approx(torch.linalg.matrix_norm(layer.eval().weight.detach(), 2).item(), rel=1e-5)


# -------------------------------------------------------------------------------------------------------- other bounds


def hooked(module: nn.Module) -> nn.Module:
    module.register_forward_hook(lambda module, args, output: output)
    return module


@pytest.mark.parametrize(
    "rnn", [OwnScan(3, 4), OwnRNN(3, 4), hooked(nn.RNN(3, 4)), hooked(SpectralRNN(3, 4))], ids=repr
)
def test_recurrent_bounds_refuse_another_call(rnn: nn.Module) -> None:
    with pytest.raises(TypeError, match="rnn: expected a torch.nn.RNN or SpectralRNN as it is known, got .* with"):
        unrolled_lipschitz_bounds(rnn, 5)
    with pytest.raises(TypeError, match="rnn: expected"):
        rnn_generalization_gap(rnn, nn.Linear(4, 2), steps=5, **NUMBERS)


def test_weights_that_an_rnn_does_not_run_with_are_refused() -> None:
    rnn = parametrize.register_parametrization(nn.RNN(3, 4), "weight_hh_l0", Double())  # torch runs without it
    with pytest.raises(TypeError, match="rnn: .* got 'weight_hh_l0' that is not what it runs with"):
        unrolled_lipschitz_bounds(rnn, 5)


def test_a_registered_rnn_is_known() -> None:
    rnn = register_svd_parametrization(nn.RNN(3, 4), "weight_hh_l0", sigma=Fixed(0.5), init="orthogonal")
    assert unrolled_lipschitz_bounds(rnn, 5).initial_state.item() == pytest.approx(0.5**5, rel=1e-4)


@pytest.mark.parametrize("readout", [Twice(4, 2), OwnSVD(4, 2), hooked(nn.Linear(4, 2))], ids=repr)
def test_the_recurrent_gap_refuses_another_readout(readout: nn.Module) -> None:
    with pytest.raises(TypeError, match="readout: expected a torch.nn.Linear or SVDLinear as it is known, got"):
        rnn_generalization_gap(SpectralRNN(3, 4), readout, steps=5, **NUMBERS)


@pytest.mark.parametrize(
    "model",
    [
        Residual(nn.Linear(3, 3, bias=False)),
        Skip(nn.Linear(3, 3, bias=False)),
        nn.Sequential(nn.Linear(3, 3, bias=False), Steep()),
        nn.Sequential(Twice(3, 3, bias=False)),
        nn.Sequential(hooked(nn.Linear(3, 3, bias=False))),
    ],
    ids=repr,
)
def test_the_feed_forward_gap_refuses_another_call(model: nn.Module) -> None:
    with pytest.raises(TypeError, match="model: expected a .* as it is known, got .* with"):
        mlp_generalization_gap(model, **NUMBERS)
