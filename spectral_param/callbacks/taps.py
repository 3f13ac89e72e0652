"""Listening to one training step: hooks that see what passes, change nothing, and are taken off again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from spectral_param.callbacks.adjoint import RecordedCall, drops_out, save_rng


class Taps:
    """Everything heard in one step.

    Attributes:
        modules: the recurrent layers, by name.
        calls: the calls of each of them.
        gradients: for each output or weight by name, the sum of the gradients that came to it.
        open: whether forwards are still listened to; recomputation in a backward should not be.
    """

    def __init__(self) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.calls: dict[str, list[RecordedCall]] = {}
        self.gradients: dict[str, Tensor] = {}
        self.open = True
        self._cleanup = ExitStack()

    def on_recurrent(self, name: str, module: nn.Module) -> None:
        """Records the calls of a recurrent layer, and their randomness where there is any."""
        self.modules[name] = module
        calls = self.calls[name] = []
        rng: dict[str, Tensor] = {}

        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            if self.open and drops_out(module):
                rng.update(save_rng(next(module.parameters()).device))

        def after(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            if self.open:
                calls.append(RecordedCall(module, args, kwargs, result, dict(rng)))

        self._until_closed(module.register_forward_pre_hook(before).remove)
        self._until_closed(module.register_forward_hook(after, with_kwargs=True).remove)

    def on_output(self, name: str, module: nn.Module) -> None:
        """Sums up the gradients that come to what a module returns, or to the first of it where that is a tuple."""

        def listen(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            tensor = result[0] if isinstance(result, tuple) else result
            if self.open and tensor.requires_grad:
                tensor.register_hook(add)

        def add(gradient: Tensor) -> None:
            heard = self.gradients.get(name)
            self.gradients[name] = gradient.detach().clone() if heard is None else heard + gradient

        self._until_closed(module.register_forward_hook(listen).remove)

    def run_eagerly(self) -> None:
        """Has compiled code run uncompiled until closed, since it passes over hooks."""
        self._cleanup.enter_context(torch.compiler.set_stance("force_eager"))

    def close(self) -> None:
        """Takes every hook off."""
        self.open = False
        self._cleanup.close()

    def _until_closed(self, undo: Callable[[], None]) -> None:
        self._cleanup.callback(undo)


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` works on the model or a part of it."""
    if getattr(model, "_compiler_ctx", None) is not None:  # Lightning's trace of torch.compile(model)
        return True
    return any(isinstance(m, OptimizedModule) or m._compiled_call_impl is not None for m in model.modules())
