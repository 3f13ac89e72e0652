"""∂L/∂h⁽ᵗ⁾ of a recurrent layer, found after its forward and backward, without touching its inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence

State = tuple[Tensor, ...]


class RecordedCall:
    """One call of a recurrent layer: what went in, and the gradients that come back to what came out.

    The gradients are seen by tensor hooks, which change nothing.

    Args:
        module: called as ``nn.RNN`` is, ``output, state = module(input, hx)``.
        args: its positional arguments.
        kwargs: its keyword arguments.
        result: its ``(output, state)``.
        rng: states of the random number generators before the call, for a layer that drops out.
        listen: puts a hook on a tensor.

    Attributes:
        weights: names of the layer's weights whose gradients are to be found from this call.
    """

    def __init__(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        rng: dict[str, Tensor],
        listen: Callable[[Tensor, Callable[[Tensor], None]], object] = Tensor.register_hook,
    ) -> None:
        given = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        output, final = result
        self.module = module
        self.rng = rng
        self.input = _detached(given["input"])
        device = _data(self.input).device.type
        self.autocast: dict[str, Any] = {
            "device_type": device,
            "dtype": torch.get_autocast_dtype(device),
            "enabled": torch.is_autocast_enabled(device),
            "cache_enabled": False,
        }
        self.initial = _initial_state(module, self.input, given.get("hx"), _as_tuple(final))
        self.gradients: dict[str, Tensor] = {}
        self.weights: list[str] = []
        came_out = {"output": _data(output)} | {f"final{i}": state for i, state in enumerate(_as_tuple(final))}
        for name, tensor in came_out.items():
            if tensor.requires_grad:
                listen(tensor, partial(self._take, name))

    def _take(self, name: str, gradient: Tensor) -> None:
        self.gradients[name] = gradient.detach()

    @property
    def time_dim(self) -> int:
        """Which dimension of input and output is time."""
        return int(self.initial[0].dim() == 3 and bool(getattr(self.module, "batch_first", False)))

    @property
    def length(self) -> int:
        """Number of time steps T."""
        if isinstance(self.input, PackedSequence):
            return len(self.input.batch_sizes)
        return self.input.shape[self.time_dim]

    @property
    def can_be_cut(self) -> bool:
        """Whether the layer can be run piece by piece: not backwards, with dropout or over packed sequences."""
        backwards = getattr(self.module, "bidirectional", False)
        return not (backwards or drops_out(self.module) or isinstance(self.input, PackedSequence))

    def between(self, sequence: Any, start: int, stop: int) -> Any:
        """Steps start … stop - 1 of an input or output."""
        if (start, stop) == (0, self.length):
            return sequence
        return sequence.narrow(self.time_dim, start, stop - start)

    def run(self, state: State, start: int, stop: int) -> tuple[Tensor, State]:
        """Runs the layer from a state over some steps, past its hooks and with the dropout of the call."""
        hx = state if len(state) > 1 else state[0]
        devices = self.rng.keys() - {"cpu"}
        with torch.random.fork_rng(devices=devices, enabled=bool(self.rng)), torch.autocast(**self.autocast):
            restore_rng(self.rng)
            output, final = self.module.forward(self.between(self.input, start, stop), hx)
        return _data(output), _as_tuple(final)


def gradients_of(
    call: RecordedCall, times: Sequence[int], weights: Sequence[str] = ()
) -> tuple[dict[int, State], dict[str, Tensor]]:
    """∂L/∂h⁽ᵗ⁾ and ∂L/∂W of a call, after the backward of L: total derivatives, through all later steps.

    The layer is run again from each t to the next, with the state there as a leaf, and the gradients that came to its
    outputs are taken back piece by piece. No ``.grad`` is touched. Costs one forward and one backward of the layer.

    In a stack h⁽ᵗ⁾ is the state of all layers together, each of them taken as a variable of its own.

    Args:
        call: a call whose outputs have received their gradients.
        times: each from 0, the state before the first step, to T; 0 alone where the call cannot be cut.
        weights: names of weights of the layer.

    Returns:
        For each t the gradients, in the shape of the states: ``(h,)``, or ``(h, c)`` for an LSTM; and those by the
        weights that are trained.
    """
    cuts = sorted({*times, 0} if weights else set(times))
    pieces = []
    state = call.initial
    with torch.enable_grad(), parametrize.cached():  # so that W is built, once for all pieces
        read = {name: getattr(call.module, name) for name in weights}
        trained = {name: weight for name, weight in read.items() if weight.requires_grad}
        if cuts and cuts[0] > 0:
            with torch.no_grad():
                _, state = call.run(state, 0, cuts[0])
        for start, stop in pairwise([*cuts, call.length]):
            if start < stop:
                leaves = tuple(s.detach().requires_grad_() for s in state)
                output, state = call.run(leaves, start, stop)
                pieces.append((start, stop, leaves, output, state))

    def with_output(gradient: State, t: int) -> State:
        """Adds what the loss feels of h⁽ᵗ⁾ as the layer's output at t."""
        if t == 0 or "output" not in call.gradients:
            return gradient
        direct = call.gradients["output"].select(call.time_dim, t - 1)  # (B, n), by the top layer's state
        top = torch.cat([gradient[0][:-1], gradient[0][-1:] + direct])  # (layers, B, n)
        return top, *gradient[1:]

    # gradient: by the states, (layers, B, n) each; without a batch there is no B
    # along: by what a piece pulls, its last states (layers, B, n) and its output (steps, B, n), or batch first
    gradient = tuple(call.gradients.get(f"final{i}", torch.zeros_like(s)) for i, s in enumerate(call.initial))
    found = {call.length: with_output(gradient, call.length)} if call.length in times else {}
    by_weight = {name: torch.zeros_like(weight) for name, weight in trained.items()}
    for start, stop, leaves, output, final in reversed(pieces):
        pulled, along = list(final), list(gradient)
        if "output" in call.gradients:
            pulled.append(output)
            along.append(call.between(call.gradients["output"], start, stop))
        gradients = torch.autograd.grad(
            pulled,
            [*leaves, *trained.values()],
            [a.to(p.dtype) for a, p in zip(along, pulled, strict=True)],
            allow_unused=True,
            materialize_grads=True,
            retain_graph=start > 0,  # of W's own, which the pieces share
        )
        gradient = gradients[: len(leaves)]
        found[start] = with_output(gradient, start)
        for name, part in zip(trained, gradients[len(leaves) :], strict=True):
            by_weight[name] += part
    return {t: found[t] for t in times}, by_weight


def drops_out(module: nn.Module) -> bool:
    """Whether a recurrent layer draws random numbers in its forward."""
    return module.training and getattr(module, "dropout", 0) > 0 and getattr(module, "num_layers", 1) > 1


def save_rng(device: torch.device) -> dict[str, Tensor]:
    """States of the random number generators that a layer on a device draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[str(device)] = torch.cuda.get_rng_state(device)
    return states


def restore_rng(states: dict[str, Tensor]) -> None:
    """Puts generators back to what :func:`save_rng` found."""
    for device, state in states.items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


def _initial_state(module: nn.Module, input: Tensor | PackedSequence, hx: Any, final: State) -> State:
    if hx is not None:
        return tuple(state.detach() for state in _as_tuple(hx))
    trained = getattr(module, "initial_state", None)
    if trained is None:
        return tuple(torch.zeros_like(state, dtype=_data(input).dtype) for state in final)
    start = trained.detach().to(_data(input).dtype)
    return ((start if final[0].dim() == 2 else start.unsqueeze(1)).expand_as(final[0]),)


def _detached(input: Tensor | PackedSequence) -> Tensor | PackedSequence:
    if isinstance(input, PackedSequence):
        return input._replace(data=input.data.detach())
    return input.detach()


def _data(sequence: Tensor | PackedSequence) -> Tensor:
    return sequence.data if isinstance(sequence, PackedSequence) else sequence


def _as_tuple(state: Tensor | State) -> State:
    return state if isinstance(state, tuple) else (state,)
