"""The paper's Spectral-RNN: a simple recurrent network whose recurrent weights are in SVD form."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from spectral_param.functional.scan import low_rank_scan, rnn_scan
from spectral_param.functional.scan.activation import check_activation
from spectral_param.registration.injection.matrix_free import thin_factors
from spectral_param.registration.register import register_svd_parametrization
from spectral_param.sigma import SigmaMap


class SpectralRNN(nn.Module):
    """A recurrent network ``h_t = φ(W h_{t-1} + M x_t + b)`` with ``W = U diag(σ) Vᵀ``, called like ``nn.RNN``.

    W is computed once a sequence, or not at all. Each layer has one bias, as in the paper, where ``nn.RNN`` has two;
    and ``nonlinearity="leaky_relu"`` is there.

    Initial values: U and V random, σ at the map's start (see ``init``); M uniform in ±1/√hidden_size as in ``nn.RNN``;
    b and the initial state zero. Where W neither grows nor forgets, a b other than zero would add up over the steps.

    Args:
        input_size: features of an input step.
        hidden_size: features of the state.
        num_layers: layers stacked, each fed with the states of the one before.
        nonlinearity: ``"tanh"``, ``"relu"`` or ``"leaky_relu"``.
        bias: whether layers have b.
        batch_first: inputs and outputs (B, T, …) instead of (T, B, …).
        dropout: share of states dropped between layers in training, from 0 to 1.
        reflectors: see :func:`~spectral_param.register_svd_parametrization`; the paper takes 16 of 128 on MNIST.
        sigma: σ map; ``Band(0.01)`` is that of the paper's released code, and ``Fixed()`` with ``reflectors=(m, 0)``
            makes an oRNN.
        init: ``"orthogonal"``: random U and V; ``"weight"``: those of a uniform W in ±1/√hidden_size, as in ``nn.RNN``.
        negative_slope: of leaky_relu.
        learn_initial_state: train the state before the first step, one for each layer, used where no ``hx`` is given.
        matrix_free: ``False``: W is computed once a sequence. ``True``: with reflectors on both sides, fewer than
            hidden_size, each step applies W as ``σ h - L (Rᵀ h)``, and W is never built; but not where it is traced,
            under autocast or in half precision. ``None``: whichever is faster, see
            :func:`spectral_param.registration.injection.matrix_free.thin_factors`. The same to rounding.

    Attributes:
        weight_ih_l[k]: M of layer k, (hidden_size, input_size of the layer).
        weight_hh_l[k]: W of layer k, (hidden_size, hidden_size), computed from its factors.
        bias_l[k]: b of layer k, (hidden_size,).
        initial_state: (num_layers, hidden_size), with ``learn_initial_state``.

    Raises:
        ValueError: if a size, ``nonlinearity``, ``dropout``, ``negative_slope`` or ``reflectors`` is out of range.

    Example:
        >>> import torch
        >>> from spectral_param import Band
        >>> from spectral_param.nn import SpectralRNN
        >>> rnn = SpectralRNN(2, 128, nonlinearity="relu", batch_first=True, reflectors=16, sigma=Band(0.01))
        >>> output, h_n = rnn(torch.randn(4, 100, 2))
        >>> output.shape, h_n.shape
        (torch.Size([4, 100, 128]), torch.Size([1, 4, 128]))
    """

    initial_state: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        *,
        reflectors: int | tuple[int, int] | None = None,
        sigma: SigmaMap | None = None,
        init: str = "orthogonal",
        negative_slope: float = 0.01,
        learn_initial_state: bool = False,
        matrix_free: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for name, size in (("input_size", input_size), ("hidden_size", hidden_size), ("num_layers", num_layers)):
            if size < 1:
                raise ValueError(f"{name}: expected at least 1, got {size}.")
        check_activation(nonlinearity, negative_slope)
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout: expected a share from 0 to 1, got {dropout}.")
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.nonlinearity, self.negative_slope = nonlinearity, negative_slope
        self.bias, self.batch_first, self.dropout = bias, batch_first, dropout

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size
            self.register_parameter(f"weight_ih_l{layer}", parameter(hidden_size, size))
            self.register_parameter(f"weight_hh_l{layer}", parameter(hidden_size, hidden_size))
            self.register_parameter(f"bias_l{layer}", parameter(hidden_size) if bias else None)
        self.register_parameter("initial_state", parameter(num_layers, hidden_size) if learn_initial_state else None)
        self.reset_parameters()
        for layer in range(num_layers):
            register_svd_parametrization(
                self,
                f"weight_hh_l{layer}",
                reflectors=reflectors,
                sigma=sigma,
                init=init,
                matrix_free=matrix_free,
            )

    def reset_parameters(self) -> None:
        """Fills weights uniformly in ±1/√hidden_size, and biases and the initial state with zeros."""
        bound = 1 / math.sqrt(self.hidden_size)
        for name, parameter in self.named_parameters(recurse=False):
            if name.startswith("weight"):
                nn.init.uniform_(parameter, -bound, bound)
            else:
                nn.init.zeros_(parameter)

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Runs the network over a sequence.

        Args:
            input: (T, B, input_size), (B, T, input_size) with ``batch_first``, (T, input_size) without a batch, or a
                :class:`~torch.nn.utils.rnn.PackedSequence`.
            hx: state before the first step, (num_layers, B, hidden_size), or (num_layers, hidden_size) without a batch.
                ``None``: ``initial_state`` where it is trained, else zeros.

        Returns:
            The last layer's states over time, in the form of ``input``, and every layer's last state in the form of
            ``hx``.

        Raises:
            TypeError: if dtypes differ.
            ValueError: if a shape does not fit.
        """
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        self._check(input)
        if input.dim() == 2:
            states, last = self._layers(input.unsqueeze(1), None if hx is None else hx.unsqueeze(1))
            return states.squeeze(1), torch.stack(last).squeeze(1)
        states, last = self._layers(input.transpose(0, 1) if self.batch_first else input, hx)
        return states.transpose(0, 1) if self.batch_first else states, torch.stack(last)

    def _packed(self, input: PackedSequence, hx: Tensor | None) -> tuple[PackedSequence, Tensor]:
        """Runs as many sequences at each step as have not ended, in the order in which they are packed."""
        data, sizes, order, order_back = input
        self._check(data)
        runs = [(batch, len(list(steps))) for batch, steps in itertools.groupby(sizes.tolist())]
        h0 = self._first_states(data, runs[0][0], hx)
        if hx is not None and order is not None:
            h0 = h0.index_select(1, order)
        last = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                data = F.dropout(data, self.dropout, self.training)
            scan, h, states, ended = self._scan_of(layer, data), h0[layer], [], []
            for (batch, steps), x in zip(runs, data.split([batch * steps for batch, steps in runs]), strict=True):
                ended += [h[batch:]] if len(h) > batch else []  # none is of the dtype of a first state
                run, h = scan(x.view(steps, batch, -1), h[:batch])
                states.append(run.flatten(0, 1))
            data = torch.cat(states)
            last.append(torch.cat([h, *reversed(ended)]))
        ends = torch.stack(last)
        return (
            PackedSequence(data, sizes, order, order_back),
            ends if order_back is None else ends.index_select(1, order_back),
        )

    def _layers(self, x: Tensor, hx: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """All layers over (T, B, …)."""
        h0 = self._first_states(x, x.shape[1], hx)
        last = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            x, end = self._scan_of(layer, x)(x, h0[layer])
            last.append(end)
        return x, last

    def _scan_of(self, layer: int, like: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """One layer over inputs and a first state, with W, or with its thin factors where they are less work."""
        name = f"weight_hh_l{layer}"
        input_weight, bias = getattr(self, f"weight_ih_l{layer}"), getattr(self, f"bias_l{layer}")
        phi = self.nonlinearity, self.negative_slope
        thin = thin_factors(self, name, like) if len(like) else None
        if thin is None:
            weight = getattr(self, name)
            return lambda x, h: rnn_scan(x, h, input_weight, weight, bias, *phi)
        return lambda x, h: low_rank_scan(x, h, input_weight, *thin, bias, *phi)

    def _first_states(self, x: Tensor, batch: int, hx: Tensor | None) -> Tensor:
        shape = (self.num_layers, batch, self.hidden_size)
        if hx is None:
            if self.initial_state is None:
                return x.new_zeros(shape)
            return self.initial_state.to(x.dtype).unsqueeze(1).expand(shape)
        if hx.shape != shape:
            raise ValueError(f"hx: expected shape {shape}, got {tuple(hx.shape)}.")
        return hx

    def _check(self, input: Tensor) -> None:
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            expected = f"(…, {self.input_size}) of 2 or 3 dimensions"
            raise ValueError(f"input: expected {expected}, got {tuple(input.shape)}.")

    def extra_repr(self) -> str:
        """Sizes and what departs from the defaults, for printing."""
        text = f"{self.input_size}, {self.hidden_size}, nonlinearity={self.nonlinearity!r}"
        for name, default in (("num_layers", 1), ("bias", True), ("batch_first", False), ("dropout", 0.0)):
            value = getattr(self, name)
            text += "" if value == default else f", {name}={value}"
        return text
