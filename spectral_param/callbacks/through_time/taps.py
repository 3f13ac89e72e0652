"""Listening to one training step: what passes is noted, nothing is changed, and all traces are taken off again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param.callbacks.private import is_compiled as was_compiled
from spectral_param.callbacks.through_time.adjoint import RecordedCall, drops_out, save_rng
from spectral_param.callbacks.through_time.norms import square
from spectral_param.functional.ways import Way
from spectral_param.nn import SpectralRNN, SVDLinear
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.parametrization.together import keeps
from spectral_param.torch_state import private
from spectral_param.torch_state.precision import wide

RECURRENT = (nn.RNNBase, SpectralRNN)


class Taps:
    """Everything heard in one step.

    Weights in SVD form are not asked for: a layer that does without W would build it then, and compute a little
    differently. So ∂L/∂W of a linear layer is put together from its inputs and the gradients of its outputs, that of a
    recurrent one comes from its recorded calls, and only where another layer builds W itself, or W is kept for all who
    read it (``together``, torch's ``cached``), is W listened to.

    Gradients that ``training_step`` itself takes are none of L. Where it differentiates them further, W is met on ways
    that neither the outputs nor the calls of a layer tell.

    Attributes:
        calls: the calls of each recurrent layer, by name.
        weights: for each recurrent layer, which weight by name each of its tensors is.
        gradients: for each weight by name, the sum of the gradients that came to it.
        squares: for each output by name, ‖∂L/∂output‖² over all calls.
        unheard: by name why a gradient is not known, or not all of it.
        open: whether forwards are still listened to; recomputation in a backward should not be.
    """

    def __init__(self) -> None:
        self.calls: dict[str, list[RecordedCall]] = {}
        self.weights: dict[str, dict[str, str]] = {}
        self.gradients: dict[str, Tensor] = {}
        self.squares: dict[str, Tensor] = {}
        self.unheard: dict[str, str] = {}
        self._views: list[tuple[Tensor, Any, str]] = []
        self.open = True
        self._running: list[nn.Module] = []  # layers heard in another way than by their weights, while they run
        self._cleanup = ExitStack()

    def on_recurrent(self, name: str, layer: nn.Module) -> None:
        """Records the calls of a recurrent layer, and their randomness where there is any."""
        if name in self.calls:
            return
        calls = self.calls[name] = []
        self.weights[name] = {}
        rng: dict[str, Tensor] = {}

        def before(layer: nn.Module, args: tuple[Any, ...]) -> None:
            self._running.append(layer)
            if self.open and drops_out(layer):
                rng.update(save_rng(next(layer.parameters()).device))

        def after(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            self._running.remove(layer)
            if self.open:
                call = RecordedCall(
                    layer, args, kwargs, result, dict(rng), partial(self._listen, name=name, adds_up=True)
                )
                own = ((key, SVDParametrization.alone_on(layer, key)) for key in self.weights[name])
                call.weights = [key for key, p in own if p is None or not _is_kept(p)]
                calls.append(call)

        self._until_closed(layer.register_forward_pre_hook(before).remove)
        self._until_closed(layer.register_forward_hook(after, with_kwargs=True).remove)

    def on_output(self, name: str, module: nn.Module) -> None:
        """Sums up squared gradients by what a module returns, or the first of it where that is a tuple, over calls."""

        def add(gradient: Tensor) -> None:
            self.squares[name] = self.squares.get(name, 0) + square(gradient.detach())

        def after(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            first = result[0] if isinstance(result, tuple) and result else result
            if isinstance(first, Tensor):
                self._listen(first, add, name, is_own=is_linear(module))

        self._until_closed(module.register_forward_hook(after).remove)

    def on_weight(self, name: str, layer: nn.Module, tensor_name: str, parametrization: SVDParametrization) -> None:
        """Sums up the gradients that come to a weight in SVD form, in whatever way its layer uses it."""
        if name.removesuffix(f".{tensor_name}") in self.calls:
            self.weights[name.removesuffix(f".{tensor_name}")][tensor_name] = name
        elif is_linear(layer):
            self._on_linear(name, layer, parametrization)

        def listen(weight: Tensor) -> None:
            if _is_kept(parametrization) or not any(layer is running for running in self._running):
                self._listen(weight, lambda gradient: self.add(name, gradient), name)

        heard = parametrization.forward
        if not isinstance(heard, _Heard):  # by another monitor already
            heard = parametrization.forward = _Heard(heard)  # type: ignore[method-assign]  # for a hook W would be built
        heard.listeners.append(listen)
        self._until_closed(lambda: heard.let_go(parametrization, listen))

    def _on_linear(self, name: str, layer: nn.Module, parametrization: SVDParametrization) -> None:
        def before(layer: nn.Module, args: tuple[Any, ...]) -> None:
            self._running.append(layer)

        def after(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
            self._running.remove(layer)
            x = _rows(args[0] if args else kwargs["input"])

            def add(gradient: Tensor) -> None:
                self.add(name, _rows(gradient).mT @ x)

            if not _is_kept(parametrization):
                self._listen(result, add, name, is_own=True, adds_up=True)

        self._until_closed(layer.register_forward_pre_hook(before).remove)
        self._until_closed(layer.register_forward_hook(after, with_kwargs=True).remove)

    def add(self, name: str, gradient: Tensor) -> None:
        """Adds to the sum of gradients."""
        heard = self.gradients.get(name)
        self.gradients[name] = gradient.detach().clone() if heard is None else heard + gradient

    def run_eagerly(self) -> None:
        """Has compiled code run uncompiled until closed, since it passes over hooks."""
        self._cleanup.enter_context(torch.compiler.set_stance("force_eager"))

    def close(self) -> None:
        """Takes everything off."""
        self.open = False
        self._cleanup.close()

    def stop(self) -> None:
        """Listens to forwards no longer; a view that was changed in place meanwhile has lost its hooks."""
        self.open = False
        for view, grad_fn, name in self._views:
            if view.grad_fn is not grad_fn:
                self.unheard[name] = "what came out is a view, and was changed in place"
        self._views.clear()

    def _listen(
        self, tensor: Tensor, hook: Callable[[Tensor], None], name: str, *, is_own: bool = False, adds_up: bool = False
    ) -> None:
        """Hears the gradient of L, and of no other.

        Args:
            tensor: whose gradient it is.
            hook: what is done with it.
            name: of what it is for.
            is_own: whether nobody else has got what the tensor is a view of, if it is one.
            adds_up: whether something is made of gradients by outputs that has gradients in other ways too, where
                these are differentiated further.
        """

        def heard(gradient: Tensor) -> None:
            if not self.open:
                hook(gradient.reshape(shape))
            elif adds_up and torch.is_grad_enabled():
                self.unheard[name] = "training_step differentiates gradients that pass through there"

        shape, base = tensor.shape, tensor._base
        if not (self.open and tensor.requires_grad):
            return
        if base is not None and is_own and base.numel() == tensor.numel() and tensor.is_contiguous():
            tensor = base  # whose hooks stay, whatever is changed in place
        elif base is not None:
            self._views.append((tensor, tensor.grad_fn, name))
        tensor.register_hook(heard)

    def _until_closed(self, undo: Callable[[], None]) -> None:
        self._cleanup.callback(undo)


class _Heard:
    """Stands in the place of a parametrization's ``forward`` as long as somebody listens to what it builds."""

    wants_the_weight = False  # a layer that does without W still may

    def __init__(self, build: Callable[..., Tensor]) -> None:
        self.build = build
        self.listeners: list[Callable[[Tensor], None]] = []

    def __call__(self, *factors: Tensor, way: Way | None = None) -> Tensor:
        weight = self.build(*factors, way=way)
        for listen in self.listeners:
            listen(weight)
        return weight

    def let_go(self, parametrization: SVDParametrization, listen: Callable[[Tensor], None]) -> None:
        """Takes a listener off, and with the last one everything."""
        self.listeners.remove(listen)
        if not self.listeners:
            del parametrization.forward


def _is_kept(parametrization: SVDParametrization) -> bool:
    """Whether all who read W now are given the same, the layer itself too."""
    return keeps(parametrization) or (private.weight_cache() is not None and not parametrization.is_off)


def _rows(tensor: Tensor) -> Tensor:
    """All vectors of a tensor, (N, size), in float32 at least."""
    return wide(tensor.detach().reshape(-1, tensor.shape[-1]))


def is_linear(layer: nn.Module) -> bool:
    """Whether a layer with a weight in SVD form computes ``x Wᵀ + b`` of one input, in whatever way."""
    forwards = [cls for cls in type(layer).__mro__ if "forward" in cls.__dict__]
    return isinstance(layer, SVDLinear) or nn.Linear in forwards[:2]  # the first is that of the registration


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` works on the model or a part of it."""
    return was_compiled(model) or any(private.is_compiled(m) for m in model.modules())
