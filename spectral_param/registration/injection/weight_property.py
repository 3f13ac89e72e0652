"""Reading and writing a registered weight as the attribute that it was.

- Within a forward of its module a weight is evaluated where it is read; by attention, in blocks, and without
  gradients, once.
- Read outside of one it is watched until it is let go (``watch.py``).
- An assignment goes into the factors that are there, so that optimizers, hooks and wrappers keep their hold on them.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spectral_param.parametrization import together
from spectral_param.parametrization.lookup import parametrization_lists
from spectral_param.parametrization.svd import SVDParametrization
from spectral_param.registration.injection import watch
from spectral_param.registration.injection.callers import refuse_onnx, refuse_to_lend, refuse_to_swap
from spectral_param.registration.injection.sole_holder import owner_of_parameter
from spectral_param.torch_state.modes import is_listened_to, traced_or_transformed, under_dispatch_mode
from spectral_param.torch_state.private import saved_tensor_hooks, tracing_state, weight_cache
from spectral_param.torch_state.shards import write_
from spectral_param.torch_state.users_line import warn


class _Read:
    """What a forward has read of its module's weights."""

    __slots__ = ("hooks", "keep", "weights")

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.hooks = saved_tensor_hooks()
        self.weights: dict[tuple[object, ...], Tensor] = {}

    def weight(self, module: nn.Module, held: Any, tensor_name: str) -> Tensor:
        """The weight as it stands, evaluated if it has to be."""
        with_gradients = torch.is_grad_enabled()
        if with_gradients and not self.keep and not self._is_of_experts(held):
            return _evaluate(module, held, tensor_name)
        key: tuple[object, ...] = (tensor_name, with_gradients, torch.is_inference_mode_enabled())
        if not self.keep:
            factors = held._parameters.values()
            key += tuple(None if f.is_inference() else (id(f), f._version) for f in factors)
        if key not in self.weights:
            self.weights[key] = _evaluate(module, held, tensor_name)
        return self.weights[key]

    def _is_of_experts(self, held: Any) -> bool:
        """Whether a loop may read one block after another, each time all; not in a part that is checkpointed alone."""
        return held._modules["0"].chunks > 1 and self.hooks == saved_tensor_hooks()


class _Running(threading.local):
    """What the forwards that run in this thread have read, by the id of their module."""

    def __init__(self) -> None:
        self.reads: dict[int, _Read] = {}


_running = _Running()


def in_forward(forward: Callable[..., Any], *, keep: bool) -> Callable[..., Any]:
    """Tells reads within a forward from those outside.

    Args:
        forward: of the plain class.
        keep: evaluates a weight once in it. Otherwise only without gradients, or one in blocks, and anew where a factor
            has changed: a forward may go back through its weight, clip it, or be checkpointed in parts.
    """

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        if watch.handed_out:
            watch.tell_of_writes(self)
        reads = _running.reads
        outer = reads.get(id(self))
        reads[id(self)] = _Read(keep)
        try:
            return forward(self, *args, **kwargs)
        finally:
            if outer is None:
                del reads[id(self)]
            else:
                reads[id(self)] = outer

    return wrapped


def weight_property(tensor_name: str) -> property:
    """The property of a registered weight; where it is not registered on an instance, a plain attribute is meant."""

    def read(self: Any) -> Tensor:
        held = self._modules["parametrizations"]._modules.get(tensor_name)
        if held is None:
            return _read_plain(self, tensor_name)
        if traced_or_transformed():
            refuse_onnx()
            return _evaluate(self, held, tensor_name)
        reads = _running.reads.get(id(self))
        if reads is None:
            refuse_to_lend(self._plain_class.__name__, tensor_name)
            watch.tell_of_writes(self)
        weight = None
        if not torch.is_grad_enabled() and (reads is not None or not self.training):
            weight = kept(held)
        if weight is None:
            weight = _evaluate(self, held, tensor_name) if reads is None else reads.weight(self, held, tensor_name)
        if reads is None:
            watch.hand_out(held, weight)
        return weight

    def write(self: Any, value: Tensor) -> None:
        held = parametrization_lists(self)._modules.get(tensor_name)
        if held is None:
            vars(self)[tensor_name] = value
            return
        if not isinstance(value, Tensor):
            raise TypeError(f"{tensor_name}: expected a tensor, got {type(value).__name__}.")
        refuse_to_swap(self._plain_class.__name__, tensor_name)
        _tell_of_a_tie(self._plain_class.__name__, held, tensor_name, value)
        fill(held, factors_of(held, value))
        watch.forget(held)
        if id(self) in _running.reads:
            _running.reads[id(self)].weights.clear()

    return property(read, write, lambda self: _delete_plain(self, tensor_name))


def foreign_property(tensor_name: str) -> property:
    """The property of a tensor that only parametrizations other than ours hold."""

    def read(self: Any) -> Tensor:
        held = parametrization_lists(self)._modules.get(tensor_name)
        if held is None:
            return _read_plain(self, tensor_name)
        return _evaluate(self, held, tensor_name)

    def write(self: Any, value: Tensor) -> None:
        held = parametrization_lists(self)._modules.get(tensor_name)
        if held is None:
            vars(self)[tensor_name] = value
        else:
            held.right_inverse(value)

    return property(read, write, lambda self: _delete_plain(self, tensor_name))


def _read_plain(module: Any, tensor_name: str) -> Any:
    """The attribute as a class without the property would have it: a sibling of the module had that parametrized."""
    own = module.__dict__  # which older compilers know better than vars
    return own[tensor_name] if tensor_name in own else module.__getattr__(tensor_name)


def _delete_plain(module: Any, tensor_name: str) -> None:
    if tensor_name in parametrization_lists(module):
        raise AttributeError(
            f"{tensor_name}: is computed, and cannot be deleted before its parametrization is removed."
        )
    if tensor_name not in vars(module):
        raise AttributeError(tensor_name)
    del vars(module)[tensor_name]


def factors_of(held: Any, weight: Tensor) -> Sequence[Tensor]:
    """The factors for a weight, through the inverses of what is parametrized on top of ours."""
    with torch.no_grad():
        for later in reversed(list(held)[1:]):
            if not hasattr(later, "right_inverse"):
                raise ValueError(
                    f"weight: {type(later).__name__}, registered on top, has no right_inverse to assign by."
                )
            weight = later.right_inverse(weight)
        return held[0].right_inverse(weight)


def fill(held: parametrize.ParametrizationList, factors: Sequence[Tensor]) -> None:
    """Writes factors into those that a list holds, in place."""
    with torch.no_grad():
        for i, factor in enumerate(factors):
            write_(getattr(held, f"original{i}"), factor)


def _evaluate(module: nn.Module, held: Any, tensor_name: str) -> Tensor:
    """W: built together with others, kept by torch's ``cached``, or evaluated."""
    if together.running.store and (built := together.kept_weight(held)) is not None:
        return built
    p = held._modules["0"]
    if torch.is_grad_enabled() and isinstance(p, SVDParametrization):
        p.kept_weight.clear()
    cache = weight_cache()
    if cache is None or (isinstance(p, SVDParametrization) and p.is_off):
        return held()
    if tracing_state() is not None:
        raise RuntimeError("Cannot trace a model while caching parametrizations.")
    key = (id(module), tensor_name)
    weight = cache.get(key)
    if weight is None:
        weight = cache[key] = held()
    return weight


def kept(held: Any) -> Tensor | None:
    """W as it was before, without gradients, where it depends on nothing but the SVD, and nobody waits for its making.

    Args:
        held: the parametrization list; nothing traces or transforms.
    """
    p = held._modules["0"]
    if together.running.store or weight_cache() is not None or len(held._modules) > 1:
        return None
    if "forward" in held.__dict__ or "forward" in p.__dict__ or under_dispatch_mode():
        return None
    if is_listened_to(held, p, p._modules["sigma_map"]):
        return None
    return p.kept_weight.weight(p, held)


def _tell_of_a_tie(owner: str, held: nn.Module, tensor_name: str, value: Tensor) -> None:
    """Warns where ``head.weight = embedding.weight`` would tie plain layers, and copies here."""
    tied = watch.is_of_another(value, held)
    if not tied and isinstance(value, nn.Parameter):
        tied = owner_of_parameter(value) is not None
    if tied:
        warn(
            f"{tensor_name}: the weight of another module is copied into the factors of {owner}, and the two "
            "are not tied; share the module, or tie before registering."
        )
