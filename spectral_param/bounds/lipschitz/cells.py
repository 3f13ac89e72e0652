"""One step of a recurrent cell, jointly in its input and its state.

Note [Cells]
~~~~~~~~~~~~
u = (x, h) and, for each gate g, W_g = [W_ig, W_hg]; σ has slopes up to 1/4, tanh up to 1.

- GRU: h' = (1 - z) n + z h with n = tanh(W_in x + r (W_hn h + b_hn)). (1 - z) dn + z dh is at most ‖(dn, dh)‖, and (h
- n) dz
  at most (1 + S) ‖W_z‖ / 4 ‖du‖ where |h_i| ≤ S. Since 0 ≤ r ≤ 1, ‖dn‖ ≤ (√(‖W_in‖² + ‖W_hn‖²) + N ‖W_r‖ / 4) ‖du‖,
  with N the greatest that an entry of W_hn h + b_hn can be. From h = 0 on S = 1, h' being between h and n.
- LSTM: c' = f c + i g, h' = o tanh(c'). ‖dc'‖ ≤ ‖dc‖ + (C ‖W_f‖ / 4 + ‖W_i‖ / 4 + ‖W_g‖) ‖du‖ where |c_i| ≤ C, and
  ‖dh'‖ ≤ ‖dc'‖ + ‖W_o‖ / 4 ‖du‖. |c_i| grows by up to 1 a step: no C holds for all, so it has to be said.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from spectral_param.bounds.known_call import check_known, known_calls
from spectral_param.bounds.norms import weight_in_evaluation
from spectral_param.parametrization.lookup import registered_names

_CELLS = known_calls(nn.RNNCell, nn.GRUCell, nn.LSTMCell)


def cell_lipschitz_bound(cell: nn.RNNCellBase, *, state: float = 1.0, memory: float | None = None) -> Tensor:
    """Bounds the Lipschitz constant of one step of a cell, from (input, state) to the next state.

    Euclidean over all entries of input and state together, of an LSTM those of its memory c as well. A GRU is Lipschitz
    where its state is bounded, which it is by 1 once it starts at zero; an LSTM where its memory is. See Note [Cells].

    Args:
        cell: ``nn.RNNCell``, ``nn.GRUCell`` or ``nn.LSTMCell``.
        state: the greatest entry of h, of a GRU.
        memory: the greatest entry of c, which an LSTM needs: after T steps from zero T at most.

    Returns:
        A scalar in float64 on the CPU, differentiable with respect to the weights.

    Raises:
        TypeError: if ``cell`` is another kind of module, has a ``forward`` of its own, or hooks.
        ValueError: if ``state`` or ``memory`` is negative or not finite, or there is none for an LSTM.

    Example:
        >>> from torch import nn
        >>> from spectral_param.bounds import cell_lipschitz_bound
        >>> cell = nn.GRUCell(2, 2)
        >>> for weight in cell.parameters():
        ...     _ = nn.init.zeros_(weight)
        >>> round(cell_lipschitz_bound(cell).item(), 4)  # it halves h, which is not seen
        1.0
    """
    check_known("cell", cell, _CELLS)
    if isinstance(cell, nn.LSTMCell) and memory is None:
        raise ValueError("memory: expected the greatest entry of an LSTM's memory, without which it has no bound.")
    for name, number in (("state", state), ("memory", 0.0 if memory is None else memory)):
        if isinstance(number, bool) or not 0 <= number < math.inf:
            raise ValueError(f"{name}: expected a finite number of at least 0, got {number}.")
    inputs, states = (weight_in_evaluation(cell, f"weight_{kind}").to("cpu", torch.float64) for kind in ("ih", "hh"))
    both = torch.cat([inputs, states], 1)
    if isinstance(cell, nn.RNNCell):
        bound = _norm(both)
    elif isinstance(cell, nn.GRUCell):
        r, z, _ = map(_norm, both.chunk(3))
        into, back = inputs.chunk(3)[2], states.chunk(3)[2]
        bias = (
            torch.zeros(cell.hidden_size) if cell.bias_hh is None else cell.bias_hh.to("cpu", torch.float64).chunk(3)[2]
        )
        most = (back.abs().sum(1) * state + bias.abs()).amax()
        n = torch.hypot(_norm(into), _norm(back)) + most * r / 4
        bound = torch.hypot(n, torch.ones_like(n)) + (1 + state) * z / 4
    else:
        i, f, g, o = map(_norm, both.chunk(4))
        by_u = (memory or 0.0) * f / 4 + i / 4 + g
        one = torch.ones_like(by_u)
        bound = _norm(torch.stack([torch.stack([by_u, one]), torch.stack([by_u + o / 4, one])]))
    rounded = 16 * torch.finfo(cell.weight_hh.dtype).eps if registered_names(cell) else 1e-12
    return bound * (1 + rounded)


def _norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix, 2)
