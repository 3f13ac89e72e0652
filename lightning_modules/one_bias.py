"""torch's recurrent layers with one bias, as the paper counts them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

State = Tensor | tuple[Tensor, Tensor]


class OneBias(nn.Module):
    """One layer of :class:`torch.nn.RNN` or :class:`torch.nn.LSTM` with one bias instead of two.

    The bias is the weight of an input that is always 1: the last column of ``layer.weight_ih_l0``.

    Args:
        kind: ``nn.RNN`` or ``nn.LSTM``.
        input_size: features of a step.
        hidden_size: size n of the state.
        learn_initial_state: whether ``initial_state`` is trained: h₀, or h₀ and c₀ of an LSTM, of
            shape ``(1, n)`` or ``(2, n)``, zero at the start. Otherwise it is None, and the first
            state zero.
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
        kind: type[nn.RNN] | type[nn.LSTM],
        input_size: int,
        hidden_size: int,
        learn_initial_state: bool = False,
        **options: str,
    ) -> None:
        super().__init__()
        self.layer = kind(input_size + 1, hidden_size, bias=False, batch_first=True, **options)
        states = 2 if kind is nn.LSTM else 1
        self.initial_state = nn.Parameter(torch.zeros(states, hidden_size)) if learn_initial_state else None

    def forward(self, input: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Runs over sequences of shape ``(batch, length, input_size)``, as torch's layers do."""
        if hx is None and self.initial_state is not None:
            states = self.initial_state[:, None, None].expand(-1, 1, len(input), -1).contiguous()
            hx = states[0] if len(states) == 1 else (states[0], states[1])
        return self.layer(F.pad(input, (0, 1), value=1.0), hx)
