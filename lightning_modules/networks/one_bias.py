"""torch's recurrent layers with one bias, as the paper counts them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = Tensor | tuple[Tensor, Tensor]


class OneBias(nn.Module):
    """A stack of :class:`torch.nn.RNN`, :class:`torch.nn.GRU` or :class:`torch.nn.LSTM` layers with one bias each.

    The bias is the weight of an input that is always 1: the last column of ``layers[i].weight_ih_l0``.

    Args:
        kind: ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``.
        input_size: features of a step.
        hidden_size: size n of the state.
        num_layers: layers, each fed with the states of the one before.
        dropout: share of states dropped between layers in training.
        learn_initial_state: whether ``initial_state`` is trained: h₀ of each layer, then c₀ of each of an LSTM, of
            shape ``(num_layers, n)`` or ``(2 * num_layers, n)``, zero at the start. Otherwise it is None, and the
            first state zero.
        **options: further arguments of ``kind``, such as ``nonlinearity``.

    Example:
        >>> lstm = OneBias(nn.LSTM, 2, 32, learn_initial_state=True)
        >>> output, (h, c) = lstm(torch.zeros(8, 100, 2))
        >>> output.shape
        torch.Size([8, 100, 32])
        >>> sum(p.numel() for p in lstm.parameters()) == 4 * (32 * 32 + 32 * 2 + 32) + 2 * 32
        True
    """

    def __init__(
        self,
        kind: type[nn.RNN] | type[nn.GRU] | type[nn.LSTM],
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        dropout: float = 0.0,
        learn_initial_state: bool = False,
        **options: str,
    ) -> None:
        super().__init__()
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.layers = nn.ModuleList(
            kind(size + 1, hidden_size, bias=False, batch_first=True, **options) for size in sizes
        )
        self.dropout = dropout
        self.states = 2 if kind is nn.LSTM else 1
        rows = self.states * num_layers
        self.initial_state = nn.Parameter(torch.zeros(rows, hidden_size)) if learn_initial_state else None

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Runs over sequences of shape ``(batch, length, input_size)``, as torch's layers do."""
        starts: tuple[Tensor | None, ...]
        if hx is None and self.initial_state is not None:
            starts = self.initial_state[:, None].expand(-1, len(input), -1).contiguous().chunk(self.states)
        else:
            starts = hx if isinstance(hx, tuple) else (hx,)

        ends: list[tuple[Tensor, ...]] = []
        for i, layer in enumerate(self.layers):
            if i and self.dropout:
                input = F.dropout(input, self.dropout, self.training)
            start = tuple(start[i : i + 1] for start in starts if start is not None)
            with_one = F.pad(input, (0, 1), value=1.0)
            input, end = layer(with_one, (start if len(start) > 1 else start[0]) if start else None)
            ends.append(end if isinstance(end, tuple) else (end,))
        last = [torch.cat(states) if len(states) > 1 else states[0] for states in zip(*ends, strict=True)]
        return input, (last[0], last[1]) if len(last) > 1 else last[0]
