"""The unitary networks that the paper is compared with in Table 2."""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

EPS = 1e-6  # under the root of |z|²: keeps the gain of modReLU bounded where z has no phase


class UnitaryRNN(nn.Module):
    """A recurrent layer with complex states, ``h_t = modReLU(W h_{t-1} + M x_t, b)``, W unitary.

    modReLU(z, b) = ReLU(|z| + b) z / |z| keeps the phase (Arjovsky, Shah and Bengio 2016). States are given out as
    real numbers, real parts before imaginary ones.

    The state before the first step must not be zero, where modReLU has no derivative: it is drawn at random, uniform
    and of norm about 1, and stays if it is not trained. M starts uniform as Glorot and Bengio have it, b at zero.

    Args:
        recurrence: gives the function ``h → W h`` when called; :class:`RestrictedUnitary` or :class:`FullUnitary`.
        input_size: features of a step.
        hidden_size: size n of the complex state.
        learn_initial_state: whether the state before the first step is trained.

    Example:
        >>> rnn = UnitaryRNN(RestrictedUnitary(16), input_size=2, hidden_size=16)
        >>> output, state = rnn(torch.zeros(8, 10, 2))
        >>> output.shape, state.shape
        (torch.Size([8, 10, 32]), torch.Size([1, 8, 32]))
    """

    def __init__(
        self, recurrence: nn.Module, input_size: int, hidden_size: int, learn_initial_state: bool = False
    ) -> None:
        super().__init__()
        self.recurrence = recurrence
        self.input_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(2 * hidden_size, input_size)))
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        bound = math.sqrt(3 / (2 * hidden_size))
        self.initial_state = nn.Parameter(torch.empty(1, 2 * hidden_size).uniform_(-bound, bound), learn_initial_state)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Runs over ``(batch, length, input_size)``.

        Args:
            input: the sequences.
            hx: state before the first step, ``(1, batch, 2 n)``; None: the layer's own.

        Returns:
            All states, ``(batch, length, 2 n)``, and the last one, ``(1, batch, 2 n)``.
        """
        if hx is None:
            hx = self.initial_state[:, None].expand(-1, len(input), -1)
        turn: Callable[[Tensor], Tensor] = self.recurrence()
        h = _as_complex(hx[0])
        states = []
        for projected in _as_complex(F.linear(input, self.input_weight)).unbind(1):
            z = turn(h) + projected
            size = (z.real.square() + z.imag.square() + EPS).sqrt()
            h = z * (F.relu(size + self.bias) / size)
            states.append(h)
        output = torch.stack(states, dim=1)
        return torch.cat([output.real, output.imag], dim=-1), torch.cat([h.real, h.imag], dim=-1)[None]


class RestrictedUnitary(nn.Module):
    """``W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁``: 7 n numbers (Arjovsky, Shah and Bengio 2016, Eq. 6).

    D are diagonals of phases, R reflections ``I - 2 v v* / ‖v‖²``, F the Fourier transform, Π a fixed permutation.

    Initial values: phases uniform in ±π, entries of v in ±1.

    Args:
        size: n.
    """

    permutation: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.phases = nn.Parameter(torch.empty(3, size).uniform_(-math.pi, math.pi))
        self.reflections = nn.Parameter(torch.empty(2, 2 * size).uniform_(-1, 1))
        self.register_buffer("permutation", torch.randperm(size))

    def forward(self) -> Callable[[Tensor], Tensor]:
        """Returns the function ``h → W h`` of rows h."""
        d1, d2, d3 = torch.polar(torch.ones_like(self.phases), self.phases)
        r1, r2 = F.normalize(_as_complex(self.reflections), dim=-1)

        def turn(h: Tensor) -> Tensor:
            h = _reflect(torch.fft.fft(h * d1, norm="ortho"), r1)
            return _reflect(torch.fft.ifft(h[:, self.permutation] * d2, norm="ortho"), r2) * d3

        return turn


class FullUnitary(nn.Module):
    """Any unitary W, by torch's Cayley map: n² numbers (Wisdom et al. 2016).

    Initial values: W random.

    Args:
        size: n.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(size, size, dtype=torch.cfloat)).Q)
        parametrizations.orthogonal(self, orthogonal_map="cayley")

    def forward(self) -> Callable[[Tensor], Tensor]:
        """Returns the function ``h → W h`` of rows h."""
        transposed = self.weight.mT
        return lambda h: h @ transposed


def _as_complex(parts: Tensor) -> Tensor:
    real, imaginary = parts.float().chunk(2, dim=-1)
    return torch.complex(real, imaginary)


def _reflect(h: Tensor, v: Tensor) -> Tensor:
    return h - 2 * (h @ v.conj())[:, None] * v
